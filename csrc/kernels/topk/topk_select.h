// Exact choice among candidates.
#pragma once

#include "kernels/topk/topk_sample.h"
#include "kernels/topk/topk_table.h"

namespace commprof::kernels {

// The cut that chooses the k largest of `count` >= k values, whose keys are
// all at least band.lowest; fast where the k-th is within the band. values and
// keys, which is overwritten, have room for count + kPad.
Cut findCut(
    const float* values,
    size_t count,
    size_t k,
    KeyBand band,
    int32_t* keys);

} // namespace commprof::kernels
