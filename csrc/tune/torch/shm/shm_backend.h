// A c10d backend that runs collectives between ranks of one host in shared
// memory. All other operations go to the wrapped backend, which is gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "tune/shm/team.h"

namespace commprof::tune {

// `team` has all ranks of the group. Whether a call uses shared memory depends
// on its operation, reduction and tensors. So the tensors must be of the same
// kind on all ranks.
c10::intrusive_ptr<c10d::Backend> makeShmBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    std::shared_ptr<shm::Team> team);

} // namespace commprof::tune
