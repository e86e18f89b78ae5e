#include "kernels/low_rank.h"

#include <algorithm>
#include <cmath>

namespace commprof::kernels {

void projectRows(
    const float* gradient,
    float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* q,
    float* p) {
  for (size_t row = 0; row < rows; ++row) {
    const float* g = gradient + row * cols;
    float* r = residual + row * cols;
    for (size_t col = 0; col < cols; ++col) {
      r[col] += g[col];
    }
    for (int j = 0; j < rank; ++j) {
      float sum = 0;
      for (size_t col = 0; col < cols; ++col) {
        sum += r[col] * q[size_t(j) * cols + col];
      }
      p[row * size_t(rank) + size_t(j)] = sum;
    }
  }
}

void orthogonalise(float* p, size_t rows, int rank) {
  const size_t width = size_t(rank);
  const auto dot = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t row = 0; row < rows; ++row) {
      sum += double(p[row * width + a]) * double(p[row * width + b]);
    }
    return sum;
  };
  for (size_t j = 0; j < width; ++j) {
    const double before = dot(j, j);
    // Twice is enough (Giraud et al., 2005): one sweep loses orthogonality
    // where columns are nearly parallel.
    for (int sweep = 0; sweep < 2; ++sweep) {
      for (size_t i = 0; i < j; ++i) {
        const double along = dot(i, j);
        for (size_t row = 0; row < rows; ++row) {
          float& x = p[row * width + j];
          x = float(double(x) - along * double(p[row * width + i]));
        }
      }
    }
    const double after = dot(j, j);
    const bool independent = after > 1e-10 * before;
    const double factor = independent ? 1.0 / std::sqrt(after) : 0.0;
    for (size_t row = 0; row < rows; ++row) {
      float& x = p[row * width + j];
      x = independent ? float(double(x) * factor) : 0.0f;
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
  const size_t width = size_t(rank);
  std::fill(q, q + width * cols, 0.0f);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t j = 0; j < width; ++j) {
      const float factor = p[row * width + j];
      for (size_t col = 0; col < cols; ++col) {
        q[j * cols + col] += factor * residual[row * cols + col];
      }
    }
  }
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
  const size_t width = size_t(rank);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < cols; ++col) {
      float sum = 0, local = 0;
      for (size_t j = 0; j < width; ++j) {
        sum += p[row * width + j] * q[j * cols + col];
        local += p[row * width + j] * q_local[j * cols + col];
      }
      out[row * cols + col] = sum;
      residual[row * cols + col] -= local;
    }
  }
}

} // namespace commprof::kernels
