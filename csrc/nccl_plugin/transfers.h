// Transfers: what NCCL's proxy sends to one peer, or receives from it, for one
// channel of an operation, step by step through the buffers that the GPU fills
// or empties. Several steps are in flight at a time.
//
// The time from the first step's begin to the last one's end is split without
// overlap. Of a send: *network* while any step is on its way, else *peer* while
// one is refused because the peer has not offered a buffer, else *GPU*. Of a
// receive: *arrival*, of which the peer or the network is the cause, while any
// step has not arrived, else *flush*, else *GPU*.
//
// No function allocates, throws, waits or calls into the system.
#pragma once

#include "nccl_plugin/handle.h"
#include "nccl_plugin/interface.h"
#include "nccl_plugin/operations.h"

namespace commprof::nccl {

// `operation`: empty for one of another process.
Handle beginTransfer(
    const OperationId& operation,
    const ProxyOpFields& fields) noexcept;
void endTransfer(Handle transfer) noexcept;

Handle beginStep(Handle transfer, int step) noexcept;
// Takes a state of kProxyStep.
void recordStepState(Handle step, int state, const StateArgs* args) noexcept;
void endStep(Handle step) noexcept;

} // namespace commprof::nccl
