// A top-K search from a given band: what topK() does after sampling, and what
// tests call with a misleading band.
#pragma once

#include "kernels/topk_sample.h"

namespace commprof::kernels {

// Where residual is not null it becomes x + residual, zero where chosen.
// 0 < k <= n.
TopKStats searchBand(
    const float* x,
    float* residual,
    size_t n,
    size_t k,
    KeyBand band,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

} // namespace commprof::kernels
