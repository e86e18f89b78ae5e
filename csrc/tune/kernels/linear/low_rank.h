// Arithmetic of PowerSGD (Vogels et al., NeurIPS 2019). All matrices are
// row-major: the gradient is rows x cols, P is rows x rank, Q is rank x cols.
// 1 <= rank <= 16. Sums are computed in a fixed order.
#pragma once

#include <cstddef>

namespace commprof::kernels {

inline constexpr int kMaxRank = 16;

// residual += gradient; P = residual Q^T
void projectRows(
    const float* gradient,
    float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* q,
    float* p);
// Makes the columns orthonormal, in place. A column that depends linearly on
// the columns before it becomes zero. So a zero matrix produces no NaN.
void orthogonalise(float* p, size_t rows, int rank);
// Q = P^T residual
void projectCols(
    const float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* p,
    float* q);
// out = P Q; residual -= P q_local, where q_local is this rank's Q before the
// all-reduce. The authors' code computes the residual in the same way.
void reconstruct(
    float* out,
    float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* p,
    const float* q,
    const float* q_local);

} // namespace commprof::kernels
