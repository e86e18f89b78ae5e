// A c10d backend that moves data between ranks of one host through shared
// memory and leaves everything else to the backend that it wraps, which is
// gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "shm/team.h"

namespace commprof {

// `team` holds all ranks of the group. Which of the two takes a call depends on
// its operation, reduction, element type and device alone, so that ranks decide
// alike; tensors that are not contiguous are copied.
c10::intrusive_ptr<c10d::Backend> makeShmBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    std::shared_ptr<shm::Team> team);

} // namespace commprof
