// Records DDP's finalisation at the end of a backward pass.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

namespace commprof {

// Call it when a collective or a DDP bucket is issued. Returns the id of the
// backward pass (autograd's graph task) that issues it, or -1 outside of one.
// The first call of each backward pass queues two autograd-engine callbacks.
// DDP queues its own finalisation, which waits for all buckets, after the last
// bucket was issued; so our first callback runs just before it and our second
// just after it. Both record wall time, thread CPU time and run delay: the
// training thread waited for wall - CPU - run delay.
int bracketFinalize();

// The finalisation of this thread's pass probably waits for `future`, which is
// that of the operation: if it is complete at the finalisation's end, the
// operation was. Does nothing outside of a pass.
void awaitInPass(
    const c10::intrusive_ptr<c10::ivalue::Future>& future,
    uint64_t op_id);

// While an object lives, operations that its thread issues outside of a
// backward pass count as issued by `graph_task`: a compressor's thread works
// for the pass whose bucket it has. Graph task -1: no pass.
class WorksFor {
 public:
  explicit WorksFor(int graph_task) noexcept;
  ~WorksFor();
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;
};

} // namespace commprof
