#include "tune/kernels/linear/linear_tables.h"
#include "tune/kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

inline I32 magnitudes(F32 v) {
  return bitAnd(asInt(v), set1(0x7fffffff));
}

template <bool kSum>
inline uint32_t largestMagnitude(
    const float* x,
    const float* y,
    size_t begin,
    size_t end) {
  I32 largest = set1(0);
  const auto look = [&](const float* a, [[maybe_unused]] const float* b) {
    F32 v = load(a);
    if constexpr (kSum) {
      v = add(v, load(b));
    }
    largest = max(largest, magnitudes(v));
  };
  size_t i = begin;
  for (; i + 16 <= end; i += 16) {
    look(x + i, kSum ? y + i : nullptr);
  }
  if (i < end) {
    Padded<float, 16> last_x, last_y;
    last_x.copyFrom(x + i, end - i);
    if constexpr (kSum) {
      last_y.copyFrom(y + i, end - i);
    }
    look(last_x.values, last_y.values);
  }
  return uint32_t(maxLanes(largest));
}

uint32_t maxAbsBits(const float* x, size_t begin, size_t end) {
  return largestMagnitude<false>(x, nullptr, begin, end);
}

uint32_t maxAbsBitsOfSum(
    const float* x,
    const float* y,
    size_t begin,
    size_t end) {
  return largestMagnitude<true>(x, y, begin, end);
}

struct Sums {
  F64 wanted2 = zeroF64(), sent2 = zeroF64(), dot = zeroF64();
  F64 error2 = zeroF64();
  uint64_t zeroed = 0;

  void take(F64 wanted, F64 sent) {
    const F64 error = sub(wanted, sent);
    wanted2 = add(wanted2, mul(wanted, wanted));
    sent2 = add(sent2, mul(sent, sent));
    dot = add(dot, mul(wanted, sent));
    error2 = add(error2, mul(error, error));
  }
  void take(const float* wanted_at, const float* sent_at) {
    const F32 wanted = load(wanted_at), sent = load(sent_at);
    take(lowHalf(wanted), lowHalf(sent));
    take(highHalf(wanted), highHalf(sent));
    const uint32_t zero = toBits(equal(magnitudes(sent), set1(0)));
    const uint32_t nonzero = toBits(greater(magnitudes(wanted), set1(0)));
    zeroed += uint64_t(__builtin_popcount(zero & nonzero));
  }
};

void compareRange(
    const float* wanted,
    const float* sent,
    size_t begin,
    size_t end,
    Comparison* out) {
  Sums sums;
  size_t i = begin;
  for (; i + 16 <= end; i += 16) {
    sums.take(wanted + i, sent + i);
  }
  if (i < end) {
    Padded<float, 16> last_wanted, last_sent;
    last_wanted.copyFrom(wanted + i, end - i);
    last_sent.copyFrom(sent + i, end - i);
    sums.take(last_wanted.values, last_sent.values);
  }
  out->wanted_norm2 += sumLanes(sums.wanted2);
  out->sent_norm2 += sumLanes(sums.sent2);
  out->dot += sumLanes(sums.dot);
  out->error_norm2 += sumLanes(sums.error2);
  out->zeroed += sums.zeroed;
}

} // namespace

const CompareTable compareTable = {maxAbsBits, maxAbsBitsOfSum, compareRange};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
