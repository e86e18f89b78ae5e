// A c10d backend for ranks on several hosts. An all-reduce adds up the data
// within each host through shared memory, then between hosts over gloo, and
// then shares the result within each host. A barrier is an all-reduce without
// data. All other operations, and all-reduces of tensors or reductions that the
// kernels do not support, go to the wrapped backend.
//
// Ranks in the same position on their hosts form a ring, which reduces one
// slice of the data. With H hosts, each host sends 2 (H - 1) / H times the size
// of the data, which is the minimum (Patarasuk and Yuan, 2009). In one ring
// over all n ranks, each host would send 2 (n - 1) / n times the size of the
// data.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "tune/shm/team.h"

namespace commprof::tune {

struct Hierarchy {
  std::shared_ptr<shm::Team> team; // the ranks of this host
  // Joins the ranks that have this rank's index in the team of each host; null
  // if this index is `owners` or higher.
  c10::intrusive_ptr<c10d::Backend> across;
  int owners = 1; // number of ranks on the smallest host
};

c10::intrusive_ptr<c10d::Backend> makeHierarchicalBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    Hierarchy hierarchy);

} // namespace commprof::tune
