// The two 16-bit formats, sixteen values at a time. Part of vec.h.
#pragma once

#include <cstdint>

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

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
  // To nearest even, by carry from the lower half. The carry would turn some
  // NaNs into zeros, so a NaN is cut off instead, with its quiet bit set.
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
