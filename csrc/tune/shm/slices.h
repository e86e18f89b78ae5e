// Steps within a host of an all-reduce over several hosts. The data is divided
// into slices. Each slice has an owner, which is a rank of the host. First,
// each owner receives the host's sum of its slice. Then other code adds up the
// slices of all hosts. At the end, every rank receives all slices.
//
// chunksOf() divides the data into chunks, so that transfers between hosts
// overlap with the work within each host.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "tune/kernels/linear/combine.h"
#include "tune/shm/team.h"

namespace commprof::shm {

struct Slice {
  size_t begin = 0;
  size_t end = 0;
  size_t count() const {
    return end - begin;
  }
};

// Slice i belongs to rank i of the team. Slices do not overlap. They may be
// empty and need not cover all data.
using Slices = std::span<const Slice>;

// Divides `count` elements into slices of nearly equal size. The result depends
// only on the arguments.
std::vector<Slice> equalSlices(int owners, size_t count);

// Reduces each slice of `data` over the team. The result replaces the slice in
// the `data` of its owner; everything else in `data` is unchanged.
// 1 <= slices.size() <= team.size(). `intent` describes the operation that this
// step belongs to. Throws TeamError, also if the ranks' intents differ.
void reduceToOwners(
    Team& team,
    std::byte* data,
    Slices slices,
    kernels::Element element,
    kernels::Reduction reduction,
    const std::optional<Team::Intent>& intent = {});

// Copies each owner's slice of `data` to all ranks. Throws TeamError.
void shareFromOwners(
    Team& team,
    std::byte* data,
    Slices slices,
    kernels::Element element);

// Divides `count` elements of `width` bytes into chunks, in order and without
// gaps. `owners`: number of ranks of a host that own a part of a chunk. Of much
// data, the first and last chunks are shorter, because the link is idle while
// the first chunk is summed and while the last chunk is shared.
std::vector<Slice> chunksOf(size_t count, size_t width, int owners);

} // namespace commprof::shm
