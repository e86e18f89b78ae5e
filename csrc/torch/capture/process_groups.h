// Ids of process groups, and their descriptions in the trace. A group with one
// backend for CPUs and another for devices ("cpu:gloo, cuda:nccl") counts as
// two groups, because each rank may interleave the calls of the two backends
// differently.
#pragma once

#include <c10/core/DeviceType.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/record.h"

namespace c10d {
class ProcessGroup;
}

namespace commprof {

struct GroupInfo {
  uint32_t id = 0; // 1, 2, ... in order of first use in this process
  // Number of collectives issued, recorded or not.
  std::atomic<uint32_t> next_seq{0};
  std::string token; // token of a group without a name; see noteGroupToken
  // Returns the sequence number of this rank's next message to or from a peer.
  // Call it for every message, recorded or not, so that the number is the same
  // on both ranks. Returns kNoSeq for recv_any_source and all messages received
  // after it, because it may have received from any rank.
  uint32_t nextMessage(Op op, int64_t peer);

 private:
  std::mutex mutex_;
  // Key: {true if sent, peer}.
  std::map<std::pair<bool, int64_t>, uint32_t> messages_;
  bool any_source_ = false;
};

// Returns the entry of the backend that a group uses for a type of device. The
// first call for a backend writes its description to the trace. The reference
// is valid while the group is alive. Thread-safe.
GroupInfo& groupInfo(c10d::ProcessGroup& group, c10::DeviceType type);

// Sets the token that identifies a group without a c10d name. All ranks of the
// group must use the same token. Has no effect once the group's description is
// in the trace.
void noteGroupToken(c10d::ProcessGroup& group, const std::string& token);

} // namespace commprof
