// How an all-reduce over several hosts is cut up, so that the link between them
// and the work within each host go on at the same time.
#pragma once

#include <cstddef>
#include <vector>

#include "shm/slices.h"

namespace commprof::shm {

// In order, without gaps, and the same on every host. `width`: bytes of an
// element. `owners`: ranks of a host among which each chunk is cut again. The
// first and the last ones are shorter: the link stands still while the first is
// added up, and while the last is shared.
std::vector<Slice> chunksOf(size_t count, size_t width, int owners);

} // namespace commprof::shm
