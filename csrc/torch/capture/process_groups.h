// Small numbers for process groups, and their description in the trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "core/record.h"

namespace c10d {
class ProcessGroup;
}

namespace commprof {

struct GroupInfo {
  uint32_t id = 0; // 1, 2, ... in order of first use in this process
  std::atomic<uint32_t> next_seq{0}; // collectives issued, captured or not
  // Messages of this rank to or from one peer, captured or not: the same number
  // at both ends, since a pair's messages arrive in order. kNoSeq for what was
  // received after a recv_any_source: it took a message whose sender the issue
  // does not tell.
  uint32_t nextMessage(Op op, int64_t peer);

 private:
  std::mutex mutex_;
  std::map<std::pair<bool, int64_t>, uint32_t> messages_; // {sent?, peer}
  bool any_source_ = false;
};

// Any thread. The first call for a group writes its description to the trace;
// later ones from the same thread cost two comparisons. To be used as long as
// the group is alive.
GroupInfo& groupInfo(c10d::ProcessGroup& group);

} // namespace commprof
