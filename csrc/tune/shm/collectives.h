// Blocking collectives between the ranks of one host. All ranks of the team
// call the same collectives in the same order. A rank may call them from one
// thread at a time. Results have the same bits on all ranks and in every run.
// All functions throw TeamError if a rank dies, stops or calls another
// operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tune/kernels/linear/combine.h"
#include "tune/shm/team.h"

namespace commprof::shm {

using kernels::Element;
using kernels::Reduction;

// Reduces in place.
void allReduce(
    Team& team,
    std::byte* data,
    size_t count,
    Element element,
    Reduction reduction);

// Copies `root`'s data to all ranks, in place.
void broadcast(Team& team, std::byte* data, size_t bytes, int root);

// Gathers `bytes` bytes from each rank, in the order of the ranks: into one
// buffer, or into one buffer for each rank.
void allGather(Team& team, const std::byte* in, std::byte* out, size_t bytes);
void allGather(
    Team& team,
    const std::byte* in,
    const std::vector<std::byte*>& out,
    size_t bytes);

// `in` has a part of `count` elements for each rank of the team. `out` receives
// the reduction of this rank's part over the team. `out` may be this rank's
// part of `in`.
void reduceScatter(
    Team& team,
    const std::byte* in,
    std::byte* out,
    size_t count,
    Element element,
    Reduction reduction);

void barrier(Team& team);

} // namespace commprof::shm
