// Small numbers for process groups, and their description in the trace.
#pragma once

#include <atomic>
#include <cstdint>

namespace c10d {
class ProcessGroup;
}

namespace commprof {

struct GroupInfo {
  uint32_t id = 0; // 1, 2, ... in order of first use in this process
  std::atomic<uint32_t> next_seq{0}; // collectives issued, captured or not
};

// Any thread. The first call for a group writes its description to the trace;
// later ones from the same thread cost one comparison.
GroupInfo& groupInfo(c10d::ProcessGroup& group);

} // namespace commprof
