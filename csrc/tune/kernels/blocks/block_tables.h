// Kernels of block_quant.h and cast.h, compiled for one SIMD level (level.h).
// They process the values from begin to end. For block_quant.h, begin is a
// multiple of the block size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tune/kernels/level.h"

namespace commprof::kernels {

template <class Byte>
struct BlockQuantTable {
  void (*encode)(
      const float* x,
      float* residual,
      Byte* out,
      float* scales,
      size_t begin,
      size_t end);
  void (*decode)(
      const Byte* in,
      const float* scales,
      float* out,
      float factor,
      bool streams,
      size_t begin,
      size_t end);
  void (*reduce)(
      const Byte* const* in,
      const float* const* scales,
      int count,
      float factor,
      Byte* out,
      float* out_scales,
      size_t begin,
      size_t end);
  void (*sum)(
      const Byte* const* in,
      const float* const* scales,
      int count,
      float factor,
      float* out,
      bool streams,
      size_t begin,
      size_t end);
};
using Int8Table = BlockQuantTable<int8_t>;
using Int4Table = BlockQuantTable<uint8_t>;
COMMPROF_TABLE(Int8Table, int8Table)
COMMPROF_TABLE(Int4Table, int4Table)

struct CastTable {
  void (*encodeHalf)(
      const float* x,
      float* residual,
      uint16_t* out,
      float scale,
      size_t begin,
      size_t end);
  void (*decodeHalf)(
      const uint16_t* in,
      float* out,
      float factor,
      bool streams,
      size_t begin,
      size_t end);
  void (*reduceHalf)(
      const uint16_t* const* in,
      const float* factors,
      int count,
      uint16_t* out,
      size_t begin,
      size_t end);
  void (*sumHalf)(
      const uint16_t* const* in,
      const float* factors,
      int count,
      float* out,
      bool streams,
      size_t begin,
      size_t end);
  void (*encodeBfloat16)(
      const float* x,
      float* residual,
      uint16_t* out,
      size_t begin,
      size_t end);
  void (*decodeBfloat16)(
      const uint16_t* in,
      float* out,
      float factor,
      bool streams,
      size_t begin,
      size_t end);
  void (*reduceBfloat16)(
      const uint16_t* const* in,
      const float* factors,
      int count,
      uint16_t* out,
      size_t begin,
      size_t end);
  void (*sumBfloat16)(
      const uint16_t* const* in,
      const float* factors,
      int count,
      float* out,
      bool streams,
      size_t begin,
      size_t end);
};
COMMPROF_TABLE(CastTable, castTable)

} // namespace commprof::kernels
