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
  // No operation is complete before this many channels have ended. If that is
  // less than `most`, an operation of which a number in between has ended is
  // taken to be complete when its slot or its communicator is given up.
  uint8_t least = 0;
};

// An operation of a launched kernel, as all versions of the interface describe
// it.
struct Launched {
  Record op; // kind kNcclOp; times are not set
  uint64_t issue_ns = 0;
  uint32_t thread = 0;
  Channels channels;
};

Handle beginOperation(
    Communicator& communicator,
    const Launched& launched) noexcept;
// Records an operation whose channels NCCL will not report.
void recordUntimed(const Launched& launched) noexcept;

struct OperationId {
  uint64_t op_id = 0; // 0: not known
  uint32_t communicator = 0;
};
// Returns the operation of a handle, also after it has ended.
OperationId idOf(Handle operation) noexcept;

// A channel's kernel has begun, or ended, on the GPU at `gpu_ns`. 0: not known;
// the time of this call then counts.
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
