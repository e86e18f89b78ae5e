// A top-K search from a given band: what topK() does after sampling, and what
// tests call with a misleading band.
#pragma once

#include "kernels/topk/topk_segment.h"

namespace commprof::kernels {

// Where input.residual is not null it becomes the sum, zero where chosen.
// 0 < k <= n.
TopKStats searchBand(
    const SearchInput& input,
    size_t k,
    KeyBand band,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

} // namespace commprof::kernels
