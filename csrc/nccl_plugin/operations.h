// Collectives and messages of launched kernels, from their start on the host
// until all channels of their kernels have ended.
//
// Operations are in a table of fixed size. Its slots are reused in order, so an
// operation that is never completed loses its slot to a later one. No function
// allocates, throws, waits or makes system calls.
#pragma once

#include <cstdint>

#include "core/record.h"
#include "nccl_plugin/communicator.h"
#include "nccl_plugin/handle.h"

namespace commprof::nccl {

struct Channels {
  uint8_t most = 0; // as NCCL reports; 0: not known
  // If at least this many channels have ended when the operation's slot or
  // communicator is given up, the operation counts as complete.
  uint8_t least = 0;
};

// An operation of a launched kernel, in the same form for all versions of the
// interface.
struct Launched {
  Record op; // kind kNcclOp; times are not set
  uint64_t issue_ns = 0;
  uint32_t thread = 0;
  Channels channels;
};

Handle beginOperation(
    Communicator& communicator,
    const Launched& launched) noexcept;
// Records an operation for which NCCL will report no channels.
void recordUntimed(const Launched& launched) noexcept;

struct OperationId {
  uint64_t op_id = 0; // 0: not known
  uint32_t communicator = 0;
};
// Returns the operation of a handle, also after it has ended.
OperationId idOf(Handle operation) noexcept;

// Call these when an operation's kernel has begun or ended on a channel.
// `gpu_ns`: time of the begin or end by the GPU's clock. If it is 0, the time
// of this call is used.
Handle beginChannel(
    Handle operation,
    uint8_t channel,
    uint64_t gpu_ns) noexcept;
void endChannel(Handle channel, uint64_t gpu_ns) noexcept;

// Gives up the pending operations of a communicator; of all communicators if
// `communicator` is null.
void settleOperations(const Communicator* communicator) noexcept;

} // namespace commprof::nccl
