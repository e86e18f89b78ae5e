// The passes of low_rank.h over a part of the matrix each.
#pragma once

#include <cstddef>

#include "kernels/dispatch.h"

namespace commprof::kernels {

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

} // namespace commprof::kernels
