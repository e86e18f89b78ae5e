// Stores calls of NCCL's API, so that an operation can be related to its call.
//
// Operations of an eager call come within the call's group. Operations of a
// call that a CUDA graph captured come at each replay, so the slot of a
// captured call is never used again. No function allocates, throws, waits or
// makes system calls.
#pragma once

#include <cstdint>

#include "nccl_plugin/communicator.h"
#include "nccl_plugin/handle.h"

namespace commprof::nccl {

struct ApiCall {
  uint64_t begin_ns = 0; // begin of the call or of its capture
  uint32_t thread = 0; // kernel thread id of the caller
  uint8_t datatype = 0; // index in kDatatypes; the kernel may use bytes instead
  uint64_t op_id = 0; // operation that issued the call (current_op.h); 0: none
};

inline constexpr uint32_t kReplayUnknown = UINT32_MAX;

// The call of an operation, if it is known.
struct Caller {
  bool known = false;
  Origin origin = Origin::kCall;
  uint32_t replay = 0; // number of the replay from 1, or kReplayUnknown
  ApiCall call;
};

Handle rememberCall(const ApiCall& call) noexcept;
// If there is no room, the handle tells only that the call was captured.
Handle rememberCapturedCall(const ApiCall& call) noexcept;
// `part`: identifies an operation among those into which NCCL divides one call,
// such as the messages of an all-to-all. It is not 0. The part that came first
// begins each replay.
Caller callerOf(Handle handle, uint32_t part) noexcept;

} // namespace commprof::nccl
