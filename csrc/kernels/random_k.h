// Whole blocks of 64 values, chosen by a counter-based generator that all ranks
// share: no indices on the wire, and what is sent can be summed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace commprof::kernels {

inline constexpr size_t kRandomBlock = 64;

// `count` different blocks of the int(ceil(n / 64)), ascending, the same for
// the same arguments on every machine. count is capped at the number of blocks.
// Every block is chosen with equal probability.
void chooseBlocks(
    uint64_t seed,
    uint64_t counter,
    size_t n,
    size_t count,
    std::vector<uint32_t>& blocks);

// packed[j * 64 + i] = x[blocks[j] * 64 + i] (+ residual there), 0 behind n.
// Where residual is not null it becomes x + residual, zero in the chosen
// blocks.
void gatherBlocks(
    const float* x,
    float* residual,
    size_t n,
    const std::vector<uint32_t>& blocks,
    float* packed);
// out = packed * factor in the chosen blocks, 0 elsewhere.
void scatterBlocks(
    const float* packed,
    size_t n,
    const std::vector<uint32_t>& blocks,
    float factor,
    float* out);

} // namespace commprof::kernels
