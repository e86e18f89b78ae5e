// The parts of sparse.h that run over vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"

namespace commprof::kernels {

struct SparseTable {
  // The low 16 bits of each index, and each value as binary16 of value * scale;
  // what rounding lost goes to residual[index], unless residual is null.
  void (*pack)(
      const int32_t* indices,
      const float* values,
      size_t k,
      float scale,
      float* residual,
      uint16_t* offsets,
      uint16_t* halves);
  bool (*ascending)(const uint16_t* offsets, size_t count);
  // dense[offset] += half * factor
  void (*addPart)(
      const uint16_t* offsets,
      const uint16_t* halves,
      size_t count,
      float factor,
      float* dense);
};

COMMPROF_TABLE(SparseTable, sparseTable);

} // namespace commprof::kernels
