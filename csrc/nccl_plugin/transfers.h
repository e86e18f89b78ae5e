// Transfers by NCCL's proxy. In a transfer, one channel of an operation sends
// to one peer, or receives from it. The transfer has steps; in each step, the
// GPU fills or empties a buffer. Several steps are in flight at a time.
//
// The time from the begin of the first step to the end of the last step is
// split without overlap. A send is in *network* while any step is on its way;
// else in *peer* while the peer has not offered a buffer; else in *GPU*. A
// receive is in *arrival* while any step has not arrived, because of the peer
// or the network; else in *flush*; else in *GPU*. No function allocates,
// throws, waits or makes system calls.
#pragma once

#include "nccl_plugin/handle.h"
#include "nccl_plugin/interface.h"
#include "nccl_plugin/operations.h"

namespace commprof::nccl {

// `operation`: empty if the operation belongs to another process. If the
// operation is not known, only the communicator is set.
Handle beginTransfer(
    const OperationId& operation,
    const ProxyOpFields& fields) noexcept;
void endTransfer(Handle transfer) noexcept;

Handle beginStep(Handle transfer, int step) noexcept;
// Records that the event of a step (kProxyStep) has a new state.
void recordStepState(Handle step, int state, const StateArgs* args) noexcept;
void endStep(Handle step) noexcept;

} // namespace commprof::nccl
