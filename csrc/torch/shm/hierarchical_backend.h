// A c10d backend for ranks on several hosts: all-reduce adds up within each
// host through shared memory, between hosts over gloo, and shares the result
// within the host. Everything else goes to the backend that it wraps.
//
// Ranks of equal place on their hosts form a ring of their own, each for its
// slice of the data. So every byte crosses each host's border as seldom as it
// can, 2 (H - 1) / H times per direction for H hosts (Patarasuk and Yuan,
// 2009), and several sockets carry it. A ring over all ranks sends 2 (n - 1) /
// n.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "shm/team.h"

namespace commprof {

struct Hierarchy {
  std::shared_ptr<shm::Team> team; // the ranks of this host
  // Ranks of the same place on all hosts; null for ranks at or above `owners`.
  c10::intrusive_ptr<c10d::Backend> across;
  int owners = 1; // ranks on the smallest host
};

c10::intrusive_ptr<c10d::Backend> makeHierarchicalBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    Hierarchy hierarchy);

} // namespace commprof
