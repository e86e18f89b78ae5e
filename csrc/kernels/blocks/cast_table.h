// The kernels of cast.h for one level, over the values begin to end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"

namespace commprof::kernels {

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
