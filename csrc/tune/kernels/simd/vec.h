// Sixteen 32-bit lanes on every CPU: kernels are written once with these
// operations and give the same bits at every level. A *.simd.cpp file is
// compiled once per level, with COMMPROF_SIMD_LEVEL set to the level's name and
// the flags of that level. It may therefore use this header and plain C++, but
// nothing that could be shared with other files at link time: no standard
// containers, no inline functions of other headers outside an anonymous
// namespace.
//
//   load, store, set1, iota, asInt, asFloat
//   stream: non-temporal store, aligned to 64 bytes; streamed(): called after
//     the last one, before another thread may read
//   add, sub, mul; fma = a*b+c and fnma = c-a*b, rounded once
//   sumLanes: halves folded onto each other, 16 -> 8 -> 4 -> 2 -> 1
//   bitAnd, bitOr, shiftRight<n> (logical), shiftRightSigned<n>, shiftLeft<n>;
//     max, min, maxLanes: signed
//   greater (a > b, signed), equal, nans -> Mask; toBits,
//     fromBits: lane i is bit i
//   zeroWhere(m, a), select(m, a, b): a where set, else b
//   storePacked(p, a, bits): stores the lanes in `bits` consecutively; writes
//     up to 16 lanes from p on, undefined after the packed ones
//   roundToInt: to nearest even; INT32_MIN for out of range and NaN
//   storeInt8: saturating; storeUint16: the low 16 bits;
//     storeUpper16: the high ones; loadInt8, loadUint16
//   storeHalf, loadHalf: binary16, to nearest even (half.h)
//   HalfBits, Bfloat16Bits: read and write of the 16-bit formats
//   F64: eight lanes; lowHalf(F32), highHalf(F32) widen; add, sub, mul,
//     sumLanes: 8 -> 4 -> 2 -> 1
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#define COMMPROF_LEVEL_scalar 0
#define COMMPROF_LEVEL_avx2 1
#define COMMPROF_LEVEL_avx512 2
#define COMMPROF_CAT_(a, b) a##b
#define COMMPROF_CAT(a, b) COMMPROF_CAT_(a, b)
#define COMMPROF_LEVEL_NUMBER COMMPROF_CAT(COMMPROF_LEVEL_, COMMPROF_SIMD_LEVEL)

#if COMMPROF_LEVEL_NUMBER == COMMPROF_LEVEL_avx512
#include "tune/kernels/simd/avx512.h"
#elif COMMPROF_LEVEL_NUMBER == COMMPROF_LEVEL_avx2
#include "tune/kernels/simd/avx2.h"
#else
#include "tune/kernels/simd/scalar.h"
#endif

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

// Copy of an array's last values, too few for a kernel's step, padded with
// zeros to kSize values. They get the same arithmetic as all others, and
// nothing beyond the array is accessed.
template <class T, size_t kSize>
struct Padded {
  T values[kSize] = {};

  void copyFrom(const T* from, size_t count) {
    std::memcpy(values, from, count * sizeof(T));
  }
  void copyTo(T* to, size_t count) const {
    std::memcpy(to, values, count * sizeof(T));
  }
};

// Stores or streams, selected at compile time.
template <bool kStreams>
inline void put(float* to, F32 v) {
  if constexpr (kStreams) {
    stream(to, v);
  } else {
    store(to, v);
  }
}

// The two 16-bit formats, sixteen values at a time.
struct HalfBits {
  static F32 read(const uint16_t* in) {
    return loadHalf(in);
  }
  static void write(uint16_t* out, F32 v) {
    storeHalf(out, v);
  }
};

struct Bfloat16Bits {
  static F32 read(const uint16_t* in) {
    return asFloat(shiftLeft<16>(loadUint16(in)));
  }
  // Rounds to nearest even by carry from the lower half. The carry would turn
  // some NaNs into zeros, so NaNs are truncated, with the quiet bit set.
  static void write(uint16_t* out, F32 v) {
    const I32 bits = asInt(v);
    const I32 odd = bitAnd(shiftRight<16>(bits), set1(1));
    const I32 nearest = add(bits, add(odd, set1(0x7fff)));
    const I32 quiet = bitOr(bits, set1(0x400000));
    storeUpper16(out, select(nans(v), quiet, nearest));
  }
};

} // namespace
} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
