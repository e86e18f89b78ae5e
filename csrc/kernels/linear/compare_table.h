// The kernels of compare.h for one level, over the values begin to end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"
#include "kernels/linear/compare.h"

namespace commprof::kernels {

struct CompareTable {
  uint32_t (*maxAbsBits)(const float* x, size_t begin, size_t end);
  uint32_t (*maxAbsBitsOfSum)(
      const float* x,
      const float* y,
      size_t begin,
      size_t end);
  void (*compare)(
      const float* wanted,
      const float* sent,
      size_t begin,
      size_t end,
      Comparison* out);
};
COMMPROF_TABLE(CompareTable, compareTable)

} // namespace commprof::kernels
