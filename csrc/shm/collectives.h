// Collectives between the ranks of one host. Every rank of the team calls the
// same one in the same order, from one thread at a time; all block. Results are
// the same bits on all ranks and on every run: sums are taken in the order of
// the ranks. A rank that dies, stops or asks for something else makes them
// throw TeamError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/linear/combine.h"
#include "shm/team.h"

namespace commprof::shm {

using kernels::Element;
using kernels::Reduction;

// In place.
void allReduce(
    Team& team,
    std::byte* data,
    size_t count,
    Element element,
    Reduction reduction);

// From `root` to all, in place.
void broadcast(Team& team, std::byte* data, size_t bytes, int root);

// out: team.size() parts of `bytes`, by rank; in one piece or in several.
void allGather(Team& team, const std::byte* in, std::byte* out, size_t bytes);
void allGather(
    Team& team,
    const std::byte* in,
    const std::vector<std::byte*>& out,
    size_t bytes);

// in holds team.size() parts of `count` elements; out is this rank's part of
// their reduction. out may be this rank's part of in.
void reduceScatter(
    Team& team,
    const std::byte* in,
    std::byte* out,
    size_t count,
    Element element,
    Reduction reduction);

void barrier(Team& team);

} // namespace commprof::shm
