#include "kernels/sign.h"
#include "kernels/sign_table.h"
#include "kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

// Four sums side by side: an addition does not wait for the one before it.
constexpr size_t kStep = 64;

inline F32 magnitudes(F32 v) {
  return asFloat(bitAnd(asInt(v), set1(0x7fffffff)));
}

// Sum of |x * factor| over whole steps; what is at x is x + residual where
// kFeedback, and goes to residual.
template <bool kFeedback>
inline float sumMagnitudes(const float* x, float* residual, size_t padded) {
  F32 sums[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  for (size_t i = 0; i < padded; i += kStep) {
    for (size_t part = 0; part < 4; ++part) {
      const size_t at = i + part * 16;
      F32 v = load(x + at);
      if constexpr (kFeedback) {
        v = add(v, load(residual + at));
        store(residual + at, v);
      }
      sums[part] = add(sums[part], magnitudes(v));
    }
  }
  return sumLanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// The same for values whose sum is beyond fp32's range, 2^11 times smaller.
inline float sumOfHuge(const float* values, size_t padded) {
  F32 sum = set1(0.0f);
  for (size_t i = 0; i < padded; i += 16) {
    sum = add(sum, mul(magnitudes(load(values + i)), set1(0x1p-11f)));
  }
  return sumLanes(sum);
}

// `count` values, with zeros behind them up to a multiple of kStep. Where
// kFeedback, residual becomes what is lost.
template <bool kFeedback>
inline float encodeBlock(
    const float* x,
    float* residual,
    uint64_t* bits,
    size_t count) {
  const size_t padded = (count + kStep - 1) / kStep * kStep;
  const float sum = sumMagnitudes<kFeedback>(x, residual, padded);
  const float* values = kFeedback ? residual : x;
  const float mean = sum <= 0x1.fffffep127f
      ? sum / float(count)
      : sumOfHuge(values, padded) / (float(count) * 0x1p-11f);
  const F32 plus = set1(mean), minus = set1(-mean);
  for (size_t i = 0; i < padded; i += kStep) {
    uint64_t word = 0;
    for (size_t part = 0; part < 4; ++part) {
      const size_t at = i + part * 16;
      const F32 v = load(values + at);
      const Mask negative = signs(v);
      word |= uint64_t(toBits(negative)) << (part * 16);
      if constexpr (kFeedback) {
        store(residual + at, sub(v, select(negative, minus, plus)));
      }
    }
    bits[i / kStep] = word;
  }
  return mean;
}

template <bool kFeedback>
void encodeRange(
    const float* x,
    float* residual,
    uint64_t* bits,
    float* scales,
    size_t begin,
    size_t end) {
  size_t block = begin / kSignBlock;
  for (; (block + 1) * kSignBlock <= end; ++block) {
    const size_t first = block * kSignBlock;
    scales[block] = encodeBlock<kFeedback>(
        x + first,
        kFeedback ? residual + first : nullptr,
        bits + first / 64,
        kSignBlock);
  }
  const size_t first = block * kSignBlock;
  if (first >= end) {
    return;
  }
  Padded<float, kSignBlock> last_x, last_residual;
  last_x.copyFrom(x + first, end - first);
  if constexpr (kFeedback) {
    last_residual.copyFrom(residual + first, end - first);
  }
  scales[block] = encodeBlock<kFeedback>(
      last_x.values, last_residual.values, bits + first / 64, end - first);
  if constexpr (kFeedback) {
    last_residual.copyTo(residual + first, end - first);
  }
}

void encode(
    const float* x,
    float* residual,
    uint64_t* bits,
    float* scales,
    size_t begin,
    size_t end) {
  if (residual != nullptr) {
    encodeRange<true>(x, residual, bits, scales, begin, end);
  } else {
    encodeRange<false>(x, nullptr, bits, scales, begin, end);
  }
}

inline void add16(const uint64_t* bits, size_t i, float scale, float* out) {
  const Mask negative = fromBits(uint32_t(bits[i / 64] >> i % 64) & 0xffffu);
  const F32 change = select(negative, set1(-scale), set1(scale));
  store(out, add(load(out), change));
}

void addSigns(
    const uint64_t* bits,
    const float* scales,
    float* out,
    float factor,
    size_t begin,
    size_t end) {
  size_t i = begin;
  for (; i + 16 <= end; i += 16) {
    add16(bits, i, scales[i / kSignBlock] * factor, out + i);
  }
  if (i == end) {
    return;
  }
  Padded<float, 16> last;
  last.copyFrom(out + i, end - i);
  add16(bits, i, scales[i / kSignBlock] * factor, last.values);
  last.copyTo(out + i, end - i);
}

} // namespace

const SignTable signTable = {encode, addSigns};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
