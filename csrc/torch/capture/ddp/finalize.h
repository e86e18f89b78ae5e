// Brackets what the training thread does at the end of a backward pass.
#pragma once

namespace commprof {

// Called when a collective or a DDP bucket is issued; returns the id of the
// backward pass (autograd's graph task) that issues it, or -1 outside of one.
// In the first call of each backward pass it queues two autograd-engine
// callbacks. DDP queues its own finalisation, which waits for all buckets,
// after the last bucket was issued; so the first of ours runs just before it
// and the second just after it. Both record wall time, thread CPU time and run
// delay: the training thread really waited for wall - CPU - run delay.
int bracketFinalize();

// While one lives, what its thread issues outside of a backward pass counts as
// issued by this one: a compressor's thread works for the pass whose bucket it
// has. Graph task -1: for none.
class WorksFor {
 public:
  explicit WorksFor(int graph_task) noexcept;
  ~WorksFor();
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;
};

} // namespace commprof
