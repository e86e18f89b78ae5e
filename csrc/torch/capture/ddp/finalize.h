// Records DDP's finalisation at the end of a backward pass.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

namespace commprof {

// Called when a collective or a DDP bucket is issued. Returns the id of the
// backward pass (autograd's graph task) that issues it, or -1 outside of one.
// The first call of each backward pass queues two autograd-engine callbacks.
// DDP queues its own finalisation, which waits for all buckets, after the last
// bucket was issued. So the first callback runs just before DDP's finalisation,
// and the second just after. Both record wall time, thread CPU time and run
// delay: the training thread waited for wall - CPU - run delay.
int bracketFinalize();

// Begins and ends a finalisation that the script makes itself, outside of the
// engine's callbacks (DDP.finalize_backward(), from torch 2.15 on), on the
// calling thread. It counts for the latest backward pass of this thread that
// issued collectives. If this thread has no such pass (on devices, autograd has
// threads of its own), it counts for the latest such pass of the process.
void beginManualFinalize();
void endManualFinalize();

// Notes that the finalisation of this thread's backward pass probably waits for
// the operation's `future`: if the future is complete when the finalisation
// ends, the operation is complete too. Does nothing outside of a pass.
void awaitInPass(
    const c10::intrusive_ptr<c10::ivalue::Future>& future,
    uint64_t op_id);

// From now on, operations that this thread issues outside of a backward pass
// count as issued by `graph_task`: a compressor's thread works for the pass
// that its bucket belongs to. Graph task -1: no pass.
void worksFor(int graph_task) noexcept;

} // namespace commprof
