// How the integers of a block stand in memory, for block_quant.simd.cpp.
#pragma once

#include "kernels/blocks/block_quant.h"
#include "kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

// read() gives the values i to i + 15 of a block, i a multiple of 16. write()
// asks integersAt(i) for the same, once for each i.
struct Int8 {
  using Byte = int8_t;
  static constexpr size_t kValues = kInt8Block;
  static constexpr size_t kBytes = kInt8Block;
  static constexpr float kLargest = 127;
  static constexpr bool kShortScale = true; // a bfloat16

  static size_t bytes(size_t values) {
    return values;
  }
  static I32 read(const Byte* in, size_t i) {
    return loadInt8(in + i);
  }
  template <class IntegersAt>
  static void write(Byte* out, const IntegersAt& integersAt) {
    for (size_t i = 0; i < kValues; i += 16) {
      storeInt8(out + i, integersAt(i));
    }
  }
};

struct Int4 {
  using Byte = uint8_t;
  static constexpr size_t kValues = kInt4Block;
  static constexpr size_t kBytes = kInt4Block / 2;
  static constexpr float kLargest = 7;
  static constexpr bool kShortScale = false;

  static size_t bytes(size_t) {
    return kBytes;
  }
  static I32 read(const Byte* in, size_t i) {
    const Byte* at = in + i % kBytes;
    const I32 both = loadInt8(reinterpret_cast<const int8_t*>(at));
    return i < kBytes ? shiftRightSigned<28>(shiftLeft<28>(both))
                      : shiftRightSigned<4>(both);
  }
  template <class IntegersAt>
  static void write(Byte* out, const IntegersAt& integersAt) {
    for (size_t i = 0; i < kBytes; i += 16) {
      const I32 low = bitAnd(integersAt(i), set1(15));
      const I32 high = shiftLeft<4>(integersAt(i + kBytes));
      storeInt8(reinterpret_cast<int8_t*>(out + i), bitOr(low, high));
    }
  }
};

} // namespace
} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
