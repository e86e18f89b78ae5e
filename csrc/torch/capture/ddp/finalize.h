// Records DDP's finalisation at the end of a backward pass.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

namespace commprof {

// Called when a collective or a DDP bucket is issued. Returns the id of the
// backward pass (autograd's graph task) that issues it. Outside of a backward
// pass, returns the pass that worksFor() set; -1: none.
//
// The first call of each pass queues two callbacks in the autograd engine. One
// runs just before DDP's finalisation, the other just after. Both record wall
// time and CPU time of the thread and, every 100 ms at most, its run delay. The
// training thread waited for wall time - CPU time - run delay.
int bracketFinalize();

// Begins and ends a finalisation by the script's own call of
// DDP.finalize_backward() (from torch 2.15 on). The finalisation counts for the
// latest backward pass of this thread that issued collectives. If this thread
// has no such pass, it counts for the latest such pass of the process.
void beginManualFinalize();
void endManualFinalize();

// Adds `future` to the futures that the finalisation of this thread's backward
// pass may wait for. If the future is complete when the finalisation ends, the
// operation counts as complete at that time at the latest. Does nothing outside
// of a backward pass.
void awaitInPass(
    const c10::intrusive_ptr<c10::ivalue::Future>& future,
    uint64_t op_id);

// Makes operations that this thread issues outside of a backward pass count for
// the pass `graph_task`; -1: no pass. Compressors' threads use it.
void worksFor(int graph_task) noexcept;

} // namespace commprof
