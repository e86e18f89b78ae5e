// Ids of process groups, and their description in the trace. A group with one
// backend for CPUs and another for devices ("cpu:gloo, cuda:nccl") counts as
// two groups. Nothing orders the calls of the two backends, so that each rank
// may interleave them differently: for example, one thread may save a
// checkpoint over gloo while the training thread uses NCCL.
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
  // Returns the sequence number of the next message of this rank to or from a
  // peer, recorded or not. The number is the same on both ranks, because a
  // pair's messages arrive in order. Returns kNoSeq for messages received after
  // a recv_any_source, because the sender of such a message is not known when
  // the receive is issued.
  uint32_t nextMessage(Op op, int64_t peer);

 private:
  std::mutex mutex_;
  // Key: {true if sent, peer}.
  std::map<std::pair<bool, int64_t>, uint32_t> messages_;
  bool any_source_ = false;
};

// Returns the entry of a group's backend for calls on a type of device;
// callable from any thread. The first call for a backend writes its description
// to the trace; later calls from the same thread cost three comparisons. The
// reference is valid as long as the group is alive.
GroupInfo& groupInfo(c10d::ProcessGroup& group, c10::DeviceType type);

// Sets the text by which a group without a c10d name is recognised: the text is
// the same on all ranks of the group, and different for other groups. Has no
// effect once the group's description is in the trace.
void noteGroupToken(c10d::ProcessGroup& group, const std::string& token);

} // namespace commprof
