#include <cstring>

#include "tune/kernels/simd/vec.h"
#include "tune/kernels/topk/topk_table.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kGroup = 4; // number of vectors that are tested together

inline I32 keysOf(F32 v) {
  return bitAnd(asInt(v), set1(int32_t(0x7fffffff)));
}

inline void append(Pairs out, size_t held, F32 v, size_t first, uint32_t bits) {
  storePacked(out.values + held, v, bits);
  storePacked(out.indices + held, add(iota(), set1(int32_t(first))), bits);
}

enum class Source { kX, kSum, kResidual };

template <Source kSource>
inline F32 loadSource(const float* x, const float* residual, size_t i) {
  if constexpr (kSource == Source::kX) {
    return load(x + i);
  } else if constexpr (kSource == Source::kSum) {
    return add(load(x + i), load(residual + i));
  } else {
    return load(residual + i);
  }
}

// Collects the candidates among the last values, at most 16.
template <Source kSource>
size_t collectTail(
    const float* x,
    float* residual,
    size_t begin,
    size_t end,
    int32_t above,
    Pairs out,
    size_t held) {
  Padded<float, kLanes> from_x, from_residual;
  if (kSource != Source::kResidual) {
    from_x.copyFrom(x + begin, end - begin);
  }
  if (kSource != Source::kX) {
    from_residual.copyFrom(residual + begin, end - begin);
  }
  const F32 v = loadSource<kSource>(from_x.values, from_residual.values, 0);
  const Mask taken = greater(keysOf(v), set1(above));
  const uint32_t bits = toBits(taken) & ((1u << (end - begin)) - 1);
  if (kSource != Source::kX) {
    store(from_residual.values, zeroWhere(taken, v));
    from_residual.copyTo(residual + begin, end - begin);
  }
  append(out, held, v, begin, bits);
  return held + size_t(__builtin_popcount(bits));
}

template <Source kSource>
inline size_t collectFrom(
    const float* x,
    float* residual,
    size_t begin,
    size_t end,
    int32_t above,
    Pairs out,
    size_t held) {
  const I32 limit = set1(above);
  size_t i = begin;
  for (; i + kGroup * kLanes <= end; i += kGroup * kLanes) {
    F32 v[kGroup];
    I32 largest = set1(0);
    for (size_t j = 0; j < kGroup; ++j) {
      const size_t at = i + j * kLanes;
      v[j] = loadSource<kSource>(x, residual, at);
      largest = max(largest, keysOf(v[j]));
      if (kSource == Source::kSum) {
        store(residual + at, v[j]);
      }
    }
    if (toBits(greater(largest, limit)) == 0) {
      continue;
    }
    for (size_t j = 0; j < kGroup; ++j) {
      const size_t at = i + j * kLanes;
      const Mask taken = greater(keysOf(v[j]), limit);
      const uint32_t bits = toBits(taken);
      append(out, held, v[j], at, bits);
      held += size_t(__builtin_popcount(bits));
      if (kSource != Source::kX) {
        store(residual + at, zeroWhere(taken, v[j]));
      }
    }
  }
  for (; i < end; i += kLanes) {
    const size_t last = i + kLanes < end ? i + kLanes : end;
    held = collectTail<kSource>(x, residual, i, last, above, out, held);
  }
  return held;
}

template <bool kStreams>
inline size_t collectMovedFrom(
    float* x,
    const float* residual,
    float* sum,
    size_t begin,
    size_t end,
    int32_t above,
    Pairs out,
    size_t held) {
  const I32 limit = set1(above);
  const F32 zero = set1(0.0f);
  size_t i = begin;
  for (; i + kGroup * kLanes <= end; i += kGroup * kLanes) {
    F32 v[kGroup];
    I32 largest = set1(0);
    for (size_t j = 0; j < kGroup; ++j) {
      v[j] = loadSource<Source::kSum>(x, residual, i + j * kLanes);
      largest = max(largest, keysOf(v[j]));
      store(x + i + j * kLanes, zero);
    }
    if (toBits(greater(largest, limit)) != 0) {
      for (size_t j = 0; j < kGroup; ++j) {
        const Mask taken = greater(keysOf(v[j]), limit);
        const uint32_t bits = toBits(taken);
        append(out, held, v[j], i + j * kLanes, bits);
        held += size_t(__builtin_popcount(bits));
        v[j] = zeroWhere(taken, v[j]);
      }
    }
    for (size_t j = 0; j < kGroup; ++j) {
      put<kStreams>(sum + i + j * kLanes, v[j]);
    }
  }
  if constexpr (kStreams) {
    streamed();
  }
  for (; i < end; i += kLanes) {
    const size_t last = i + kLanes < end ? i + kLanes : end;
    __builtin_memcpy(sum + i, residual + i, (last - i) * sizeof(float));
    held = collectTail<Source::kSum>(x, sum, i, last, above, out, held);
    __builtin_memset(x + i, 0, (last - i) * sizeof(float));
  }
  return held;
}

size_t collectMoved(
    float* x,
    const float* residual,
    float* sum,
    bool streams,
    size_t begin,
    size_t end,
    int32_t above,
    Pairs out,
    size_t held) {
  const auto collect =
      streams ? collectMovedFrom<true> : collectMovedFrom<false>;
  return collect(x, residual, sum, begin, end, above, out, held);
}

size_t collect(
    const float* x,
    size_t begin,
    size_t end,
    int32_t above,
    Pairs out,
    size_t held) {
  return collectFrom<Source::kX>(x, nullptr, begin, end, above, out, held);
}

size_t collectSum(
    const float* x,
    float* residual,
    size_t begin,
    size_t end,
    int32_t above,
    Pairs out,
    size_t held) {
  return collectFrom<Source::kSum>(x, residual, begin, end, above, out, held);
}

size_t collectResidual(
    float* residual,
    size_t begin,
    size_t end,
    int32_t above,
    Pairs out,
    size_t held) {
  return collectFrom<Source::kResidual>(
      nullptr, residual, begin, end, above, out, held);
}

// Returns the mask of the lanes j with i + j < count.
inline uint32_t liveLanes(size_t i, size_t count) {
  return count - i >= kLanes ? 0xffffu : (1u << (count - i)) - 1;
}

size_t keysUpTo(
    const float* values,
    size_t count,
    int32_t highest,
    int32_t* keys,
    size_t* higher) {
  const I32 limit = set1(highest);
  size_t held = 0;
  for (size_t i = 0; i < count; i += kLanes) {
    const I32 key = keysOf(load(values + i));
    const uint32_t bits = ~toBits(greater(key, limit)) & liveLanes(i, count);
    storePacked(keys + held, key, bits);
    held += size_t(__builtin_popcount(bits));
  }
  *higher = count - held;
  return held;
}

size_t keysWithin(
    const int32_t* keys,
    size_t count,
    int32_t lowest,
    int32_t highest,
    int32_t* out) {
  const I32 low = set1(lowest), high = set1(highest);
  size_t held = 0;
  for (size_t i = 0; i < count; i += kLanes) {
    const I32 key = load(keys + i);
    const uint32_t outside =
        toBits(greater(low, key)) | toBits(greater(key, high));
    const uint32_t bits = ~outside & liveLanes(i, count);
    storePacked(out + held, key, bits);
    held += size_t(__builtin_popcount(bits));
  }
  return held;
}

inline uint32_t lowestSet(uint32_t bits, size_t count) {
  while (size_t(__builtin_popcount(bits)) > count) {
    bits &= ~(0x80000000u >> __builtin_clz(bits));
  }
  return bits;
}

inline void putBack(const Pairs& from, size_t i, uint32_t bits, float* to) {
  for (; bits != 0; bits &= bits - 1) {
    const size_t j = i + size_t(__builtin_ctz(bits));
    to[from.indices[j]] = from.values[j];
  }
}

// Like storePacked(), but never writes more than `room` lanes.
template <class Lanes, class T>
inline void storeChosen(T* to, Lanes v, uint32_t bits, size_t room) {
  if (room >= kLanes) {
    storePacked(to, v, bits);
    return;
  }
  T packed[kLanes];
  storePacked(packed, v, bits);
  std::memcpy(to, packed, size_t(__builtin_popcount(bits)) * sizeof(T));
}

size_t keep(
    Pairs from,
    size_t count,
    Cut cut,
    Pairs to,
    size_t room,
    float* residual) {
  const I32 limit = set1(cut.key);
  size_t held = 0;
  for (size_t i = 0; i < count; i += kLanes) {
    const I32 index = load(from.indices + i);
    const F32 v = load(from.values + i);
    const I32 key = keysOf(v);
    const uint32_t live = liveLanes(i, count);
    const uint32_t tied = lowestSet(toBits(equal(key, limit)) & live, cut.ties);
    cut.ties -= size_t(__builtin_popcount(tied));
    const uint32_t bits = (toBits(greater(key, limit)) & live) | tied;
    if (residual != nullptr) {
      putBack(from, i, live & ~bits, residual);
    }
    storeChosen(to.indices + held, index, bits, room - held);
    storeChosen(to.values + held, v, bits, room - held);
    held += size_t(__builtin_popcount(bits));
  }
  return held;
}

} // namespace

const TopKTable topKTable = {
    collect,
    collectSum,
    collectMoved,
    collectResidual,
    keysUpTo,
    keysWithin,
    keep};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
