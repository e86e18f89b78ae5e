// PowerSGD's arithmetic (Vogels et al., NeurIPS 2019) in three streaming passes
// over a matrix of `rows` x `cols`, row-major. P is rows x rank, row-major; Q
// is rank x cols, row-major. 1 <= rank <= 16. All sums in a fixed order.
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
// Orthonormalises the columns in place, by Gram-Schmidt in fp64. A column that
// is (nearly) a combination of the previous ones becomes zero, so zero matrices
// produce no NaN.
void orthogonalise(float* p, size_t rows, int rank);
// Q = P^T residual
void projectCols(
    const float* residual,
    size_t rows,
    size_t cols,
    int rank,
    const float* p,
    float* q);
// out = P Q; residual -= P q_local. The residual is relative to this rank's own
// projection (q_local, before the all-reduce), as in the authors' code.
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
