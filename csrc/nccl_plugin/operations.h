// Collectives and messages of launched kernels, from their start on the host
// until all channels of their kernels have ended.
//
// They live in a table of fixed size, used in turn: an operation that is never
// completed loses its slot to a later one. No function allocates, throws, waits
// or calls into the system.
#pragma once

#include <cstdint>

#include "core/record.h"
#include "nccl_plugin/communicator.h"
#include "nccl_plugin/handle.h"

namespace commprof::nccl {

// How many channels an operation's kernel has.
struct Channels {
  uint8_t most = 0; // as NCCL says; 0: not known
  // No operation with fewer has completed. If that is less than `most`, an
  // operation with a number in between is taken to be complete when its slot or
  // its communicator is given up.
  uint8_t least = 0;
};

// Begins an operation, whose Issue record the caller has pushed.
Handle beginOperation(
    Communicator& communicator,
    const Record& issue,
    Channels channels) noexcept;

// A channel's kernel has begun, and ended, on the GPU at `gpu_ns`; 0: not
// known, and the time of the call counts.
Handle beginChannel(
    Handle operation,
    uint8_t channel,
    uint64_t gpu_ns) noexcept;
void endChannel(Handle channel, uint64_t gpu_ns) noexcept;
// The end of a channel whose time was not known at its begin.
void endUntimedChannel(Handle channel) noexcept;

// Gives up all operations, or those of one communicator.
void settleOperations(const Communicator* communicator) noexcept;

// Operations whose end stayed unknown.
uint64_t unendedOperations() noexcept;

} // namespace commprof::nccl
