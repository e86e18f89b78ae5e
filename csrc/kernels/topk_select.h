// Exact choice among candidates.
#pragma once

#include "kernels/topk_sample.h"
#include "kernels/topk_table.h"

namespace commprof::kernels {

// The cut that chooses the k largest of `count` >= k values, whose keys are
// all at least band.lowest; fast where the k-th is within the band. values has
// room for kPad more. Changes scratch.keys.
Cut findCut(
    const float* values,
    size_t count,
    size_t k,
    KeyBand band,
    TopKScratch& scratch);

} // namespace commprof::kernels
