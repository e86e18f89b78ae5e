// Tables of kernels that are compiled once for each SIMD level (level.h). A
// kernel with `begin` and `end` processes only this range of values, rows or
// columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tune/kernels/level.h"
#include "tune/kernels/linear/combine.h"
#include "tune/kernels/linear/compare.h"

namespace commprof::kernels {

struct CombineTable {
  using Function =
      void (*)(const std::byte* const* in, int count, std::byte* out, size_t n);
  Function functions[6][4]; // [element][reduction]
};
COMMPROF_TABLE(CombineTable, combineTable)

struct CompareTable {
  uint32_t (*maxAbsBits)(const float* x, size_t begin, size_t end);
  uint32_t (*maxAbsBitsOfSum)(
      const float* x,
      const float* y,
      size_t begin,
      size_t end);
  // Adds to *out.
  void (*compare)(
      const float* wanted,
      const float* sent,
      size_t begin,
      size_t end,
      Comparison* out);
};
COMMPROF_TABLE(CompareTable, compareTable)

struct LowRankShape {
  size_t rows, cols;
  int rank;
};

struct LowRankTable {
  void (*projectRows)(
      const LowRankShape& shape,
      const float* gradient,
      float* residual,
      const float* q,
      float* p,
      size_t begin_row,
      size_t end_row);
  void (*projectCols)(
      const LowRankShape& shape,
      const float* residual,
      const float* p,
      float* q,
      size_t begin_col,
      size_t end_col);
  void (*reconstruct)(
      const LowRankShape& shape,
      float* out,
      float* residual,
      const float* p,
      const float* q,
      const float* q_local,
      size_t begin_row,
      size_t end_row);
};

COMMPROF_TABLE(LowRankTable, lowRankTable);

struct SparseTable {
  // Stores the low 16 bits of each index, and value * scale as binary16. Stores
  // the rounding error in residual[index], unless residual is null.
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
