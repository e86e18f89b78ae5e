// A c10d backend for ranks on several hosts: all-reduce adds up within each
// host through shared memory, then between hosts over gloo, and then shares the
// result within each host. All other operations go to the wrapped backend.
//
// Ranks in the same position on their hosts form a ring, which reduces its own
// slice of the data. So every byte enters and leaves a host as rarely as
// possible, 2 (H - 1) / H times per direction for H hosts (Patarasuk and Yuan,
// 2009), over several sockets. A ring over all n ranks sends 2 (n - 1) / n.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "tune/shm/team.h"

namespace commprof::tune {

struct Hierarchy {
  std::shared_ptr<shm::Team> team; // the ranks of this host
  // Ranks in this position on all hosts; null for positions from `owners` on.
  c10::intrusive_ptr<c10d::Backend> across;
  int owners = 1; // number of ranks on the smallest host
};

c10::intrusive_ptr<c10d::Backend> makeHierarchicalBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    Hierarchy hierarchy);

} // namespace commprof::tune
