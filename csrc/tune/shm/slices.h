// The first and last step of an all-reduce whose middle step runs between
// hosts. The data is divided into slices; each belongs to one of the host's
// ranks, its owner. First each owner receives the host's sum of its slice, and
// at the end every rank receives all slices. Between hosts, each owner's
// connection transfers its slice.
//
// chunksOf() divides an all-reduce over several hosts into chunks, so that
// transfers between hosts overlap with the work within each host.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "tune/kernels/linear/combine.h"
#include "tune/shm/team.h"

namespace commprof::shm {

// Range of elements.
struct Slice {
  size_t begin = 0;
  size_t end = 0;
  size_t count() const {
    return end - begin;
  }
};

// Slices by owner. The owners are the first ranks of the team. Slices do not
// overlap, may be empty, and need not cover all data.
using Slices = std::span<const Slice>;

// Divides `count` elements into slices as equal as whole cache lines allow; the
// result is the same on every host with the same number of owners.
std::vector<Slice> equalSlices(int owners, size_t count);

// Reduces each slice of `data` over the team. The result replaces the slice in
// the `data` of its owner; everything else in `data` is unchanged.
// 1 <= slices.size() <= team.size(). Throws TeamError; `intent` describes the
// enclosing operation, which ranks compare.
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

// Divides elements into chunks, in order and without gaps, the same on every
// host. `width`: bytes per element. `owners`: number of ranks of a host that
// each own a part of a chunk. The first and last chunks are shorter, because
// the link is idle while the first is summed and while the last is shared.
std::vector<Slice> chunksOf(size_t count, size_t width, int owners);

} // namespace commprof::shm
