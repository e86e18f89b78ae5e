// A c10d backend that moves data between ranks of one host through shared
// memory, and leaves all other operations to the wrapped backend, which is
// gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "tune/shm/team.h"

namespace commprof::tune {

// `team` has all ranks of the group. Whether a call uses shared memory depends
// only on its operation, reduction, element type and device, so that all ranks
// decide in the same way. Tensors that are not contiguous are copied.
c10::intrusive_ptr<c10d::Backend> makeShmBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    std::shared_ptr<shm::Team> team);

} // namespace commprof::tune
