// What the kernel counts of what keeps a thread from its work. All are totals
// that grow; 0 where the kernel does not tell. Nothing is allocated.
#pragma once

#include <cstdint>

namespace commprof {

// Of the calling thread.
struct ThreadCounts {
  uint64_t involuntary_switches = 0; // it could have gone on
  uint64_t minor_faults = 0; // pages that were in memory, or new
  uint64_t major_faults = 0; // pages read from disk
};
ThreadCounts threadCounts() noexcept;

// For how long the CPU quota of the thread's cgroup, or of the nearest one
// above that has a quota, kept its tasks from running. A cgroup that comes to
// have one is looked for at most once a second.
uint64_t throttledNs(uint64_t now_ns) noexcept;

// For how long some task of the host stood still for want of memory.
uint64_t memoryStallNs() noexcept;

} // namespace commprof
