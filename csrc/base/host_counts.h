// The kernel's counts of events that keep a thread from its work. All are
// increasing totals; a count is 0 if the kernel does not report it. The
// functions allocate no memory.
#pragma once

#include <cstdint>

namespace commprof {

// Counts of the calling thread.
struct ThreadCounts {
  uint64_t involuntary_switches = 0; // preempted while runnable
  uint64_t minor_faults = 0; // pages that were already in memory, or new
  uint64_t major_faults = 0; // pages read from disk
};
ThreadCounts threadCounts() noexcept;

// Returns for how many ns a CPU quota has throttled the thread's cgroup, or the
// nearest ancestor with a quota. Without a quota, searches for one at most once
// a second.
uint64_t throttledNs(uint64_t now_ns) noexcept;

// Returns for how many ns some task of the host was stalled for lack of memory.
uint64_t memoryStallNs() noexcept;

} // namespace commprof
