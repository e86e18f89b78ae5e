// Vectors of sixteen 32-bit lanes. Kernels that use these operations give the
// same bits at every SIMD level.
//
// A *.simd.cpp file is compiled once for each level, with the flags of the
// level, and with COMMPROF_SIMD_LEVEL set to the level's name. So the file must
// not contain code that the linker could share with other files: no standard
// containers, and no inline functions from headers unless they are in an
// anonymous namespace.
//
//   load, store, set1, iota, asInt, asFloat
//   stream: store that bypasses the caches, to an address aligned to 64 bytes;
//     call streamed() after the last stream(), before another thread reads
//   add, sub, mul; fma = a*b+c and fnma = c-a*b, rounded once
//   sumLanes: adds the upper half of the lanes to the lower half, until one is
//     left
//   bitAnd, bitOr, shiftRight<n> (logical), shiftRightSigned<n>, shiftLeft<n>;
//     max, min, maxLanes: signed
//   greater (a > b, signed), equal, nans: return a Mask
//   toBits, fromBits: bit i stands for lane i
//   zeroWhere(m, a): 0 where m is set, else a
//   select(m, a, b): a where m is set, else b
//   storePacked(p, a, bits): stores the lanes whose bit is set, one after
//     another; may overwrite all 16 places from p on
//   roundToInt: rounds to nearest even; INT32_MIN for NaN and values out of
//     range
//   storeInt8: saturates; storeUint16: stores the low 16 bits; storeUpper16:
//     stores the high 16 bits; loadInt8, loadUint16
//   storeHalf, loadHalf: binary16, rounded to nearest even (half.h)
//   F64: eight lanes of fp64; lowHalf(F32) and highHalf(F32) convert eight
//     lanes; add, sub, mul, sumLanes
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

// Copy of the last values of an array, padded with zeros to kSize values. So a
// kernel can load a whole vector and does not read beyond the array.
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

template <bool kStreams>
inline void put(float* to, F32 v) {
  if constexpr (kStreams) {
    stream(to, v);
  } else {
    store(to, v);
  }
}

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
  // Rounds to nearest even. The addition would turn some NaNs into zeros, so
  // NaNs are truncated instead, with the quiet bit set.
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
