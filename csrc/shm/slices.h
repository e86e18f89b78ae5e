// The two halves of an all-reduce that others finish in between: every owner
// gets the host's sum of its slice, and later everybody gets all slices.
// Between hosts, each owner's connection then carries its part of the bytes.
//
// How an all-reduce over several hosts is cut up, so that the link between them
// and the work within each host go on at the same time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kernels/linear/combine.h"
#include "shm/team.h"

namespace commprof::shm {

// In elements.
struct Slice {
  size_t begin = 0;
  size_t end = 0;
  size_t count() const {
    return end - begin;
  }
};

// By owner, which is a rank of the team: the first of them have slices, which
// do not overlap; those may be empty, and need not cover all data.
using Slices = std::span<const Slice>;

// As equal as whole cache lines allow, and the same on every host that has as
// many owners.
std::vector<Slice> equalSlices(int owners, size_t count);

// Leaves in each owner's slice of `data` its reduction over the team; the rest
// of `data` is as it was. 1 <= slices.size() <= team.size(). Throws TeamError;
// `intent` says what this is a part of, for ranks that differ in that.
void reduceToOwners(
    Team& team,
    std::byte* data,
    Slices slices,
    kernels::Element element,
    kernels::Reduction reduction,
    const std::optional<Team::Intent>& intent = {});

// Copies each owner's slice of `data` to everybody's. Throws TeamError.
void shareFromOwners(
    Team& team,
    std::byte* data,
    Slices slices,
    kernels::Element element);

// In order, without gaps, and the same on every host. `width`: bytes of an
// element. `owners`: ranks of a host among which each chunk is cut again. The
// first and the last ones are shorter: the link stands still while the first is
// added up, and while the last is shared.
std::vector<Slice> chunksOf(size_t count, size_t width, int owners);

} // namespace commprof::shm
