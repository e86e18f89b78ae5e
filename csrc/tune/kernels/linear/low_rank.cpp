#include "tune/kernels/linear/low_rank.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tune/kernels/linear/linear_tables.h"
#include "tune/kernels/parallel.h"

namespace commprof::kernels {

namespace {

// Number of columns that a thread processes at a time. For a small rank, these
// columns of Q fit into the L1 cache.
constexpr size_t kColumns = 1024;

size_t rowGrain(size_t cols) {
  return std::max<size_t>(1, kGrain / std::max<size_t>(1, cols));
}

// Uses four sums, so that no addition waits for the previous one.
double dot(const double* a, const double* b, size_t n) {
  double sums[4] = {};
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (size_t j = 0; j < 4; ++j) {
      sums[j] += a[i + j] * b[i + j];
    }
  }
  for (; i < n; ++i) {
    sums[0] += a[i] * b[i];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Makes column `last` orthogonal to the columns before it, with norm 1. If only
// rounding errors are left of the column, it becomes zero.
void orthogonaliseLast(std::vector<double>& columns, size_t rows, size_t last) {
  // If less than this fraction of the squared norm is left, the column counts
  // as zero. fp32 rounding leaves about 1e-6 of a dependent column's norm.
  constexpr double kNothing = 1e-10;
  double* column = columns.data() + last * rows;
  const double before = dot(column, column, rows);
  // Two sweeps suffice for orthogonality to working precision (Giraud, Langou,
  // Rozloznik, van den Eshof, Numerische Mathematik 2005).
  for (int sweep = 0; sweep < 2; ++sweep) {
    for (size_t j = 0; j < last; ++j) {
      const double* other = columns.data() + j * rows;
      const double along = dot(other, column, rows);
      for (size_t i = 0; i < rows; ++i) {
        column[i] -= along * other[i];
      }
    }
  }
  const double after = dot(column, column, rows);
  if (after > kNothing * before) {
    const double factor = 1.0 / std::sqrt(after);
    for (size_t i = 0; i < rows; ++i) {
      column[i] *= factor;
    }
  } else {
    std::fill(column, column + rows, 0.0);
  }
}

} // namespace

void projectRows(
    const float* gradient,
    float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* q,
    float* p) {
  const auto& kernels = COMMPROF_PICK(lowRankTable);
  const LowRankShape shape{rows, cols, rank};
  parallelFor(rows, rowGrain(cols), threads(), [&](size_t begin, size_t end) {
    kernels.projectRows(shape, gradient, residual, q, p, begin, end);
  });
}

void orthogonalise(float* p, size_t rows, int rank) {
  const size_t width = size_t(rank);
  std::vector<double> columns(rows * width);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t j = 0; j < width; ++j) {
      columns[j * rows + row] = double(p[row * width + j]);
    }
  }
  for (size_t j = 0; j < width; ++j) {
    orthogonaliseLast(columns, rows, j);
  }
  for (size_t row = 0; row < rows; ++row) {
    for (size_t j = 0; j < width; ++j) {
      p[row * width + j] = float(columns[j * rows + row]);
    }
  }
}

void projectCols(
    const float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* p,
    float* q) {
  const auto& kernels = COMMPROF_PICK(lowRankTable);
  const LowRankShape shape{rows, cols, rank};
  parallelFor(cols, kColumns, threads(), [&](size_t begin, size_t end) {
    kernels.projectCols(shape, residual, p, q, begin, end);
  });
}

void reconstruct(
    float* out,
    float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* p,
    const float* q,
    const float* q_local) {
  const auto& kernels = COMMPROF_PICK(lowRankTable);
  const LowRankShape shape{rows, cols, rank};
  parallelFor(rows, rowGrain(cols), threads(), [&](size_t begin, size_t end) {
    kernels.reconstruct(shape, out, residual, p, q, q_local, begin, end);
  });
}

} // namespace commprof::kernels
