// Calls of NCCL's API, to which the operations of their kernels refer.
//
// The operations of an eager call follow within its group. Those of a call that
// a CUDA graph captured come at each replay, as long as the graph lives, so its
// place is never given to another call. No function allocates, throws, waits or
// calls into the system.
#pragma once

#include <cstdint>

#include "nccl_plugin/communicator.h"
#include "nccl_plugin/handle.h"

namespace commprof::nccl {

struct ApiCall {
  uint64_t begin_ns = 0; // of the call; of a captured one, at its capture
  uint32_t thread = 0; // kernel thread id of the caller
  uint8_t datatype = 0; // as in kDatatypes; kernels may use bytes instead
};

// What an operation knows of its call.
struct Caller {
  bool known = false;
  Origin origin = Origin::kCall;
  ApiCall call;
};

Handle rememberCall(const ApiCall& call) noexcept;
// If there is no more room, the handle says only that the call was captured.
Handle rememberCapturedCall(const ApiCall& call) noexcept;
Caller callerOf(Handle handle) noexcept;

} // namespace commprof::nccl
