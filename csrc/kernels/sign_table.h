// The kernels of sign.h for one level, over the values begin to end; begin is a
// multiple of the block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"

namespace commprof::kernels {

struct SignTable {
  void (*encode)(
      const float* x,
      float* residual,
      uint64_t* bits,
      float* scales,
      size_t begin,
      size_t end);
  void (*add)(
      const uint64_t* bits,
      const float* scales,
      float* out,
      float factor,
      size_t begin,
      size_t end);
};
COMMPROF_TABLE(SignTable, signTable)

} // namespace commprof::kernels
