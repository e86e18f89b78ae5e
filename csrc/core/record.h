// Defines the record that capture writes, and the names of its codes.
//
// Codes are part of the trace format: append new codes, and never renumber.
// Every trace file contains these names, so that readers need no copy of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof {

// X(enumerator, name in the trace). record_fields.inc describes the kinds and
// their fields.
#define COMMPROF_KINDS(X)              \
  X(None, "none")                      \
  X(Step, "step")                      \
  X(Phase, "phase")                    \
  X(Issue, "issue")                    \
  X(End, "end")                        \
  X(Wait, "wait")                      \
  X(FinalizeBegin, "finalize_begin")   \
  X(FinalizeEnd, "finalize_end")       \
  X(Bucket, "bucket")                  \
  X(BucketEnd, "bucket_end")           \
  X(Clock, "clock")                    \
  X(Stack, "stack")                    \
  X(DeviceReady, "device_ready")       \
  X(DeviceWait, "device_wait")         \
  X(DeviceFinalize, "device_finalize") \
  X(DevicePhase, "device_phase")       \
  X(DeviceStep, "device_step")         \
  X(DeviceClock, "device_clock")       \
  X(Span, "span")                      \
  X(Compression, "compression")        \
  X(Quality, "quality")                \
  X(Pause, "pause")                    \
  X(RunDelay, "run_delay")             \
  X(HostCounts, "host_counts")         \
  X(NcclOp, "nccl_op")                 \
  X(NcclSend, "nccl_send")             \
  X(NcclRecv, "nccl_recv")

enum class Kind : uint8_t {
#define X(name, text) k##name,
  COMMPROF_KINDS(X)
#undef X
};

// The ranks that must have issued an operation before a rank can complete it.
// All: every rank of the group. Tree: in gloo, the rank's neighbours in a tree
// of messages. Ring: every rank, but a rank whose part of the ring is empty may
// complete earlier. Root: only the root; the root itself needs every rank.
// Peer: the other rank of a message. commprof/analysis/align/matching.py has
// the measurements.
enum class Awaits : uint8_t { kAll, kTree, kRing, kRoot, kPeer };

// X(enumerator, public name in c10d, operator of the dispatcher, Awaits)
#define COMMPROF_OPS(X)                                                      \
  X(Other, "other", "", All)                                                 \
  X(AllReduce, "all_reduce", "allreduce_", All)                              \
  X(AllReduceCoalesced, "all_reduce_coalesced", "allreduce_coalesced_", All) \
  X(Broadcast, "broadcast", "broadcast_", Tree)                              \
  X(Reduce, "reduce", "reduce_", Ring)                                       \
  X(AllGather, "all_gather", "allgather_", All)                              \
  X(AllGatherIntoTensor, "all_gather_into_tensor", "_allgather_base_", All)  \
  X(AllGatherCoalesced, "all_gather_coalesced", "allgather_coalesced_", All) \
  X(AllGatherIntoTensorCoalesced,                                            \
    "all_gather_into_tensor_coalesced",                                      \
    "allgather_into_tensor_coalesced_",                                      \
    All)                                                                     \
  X(ReduceScatter, "reduce_scatter", "reduce_scatter_", All)                 \
  X(ReduceScatterTensor,                                                     \
    "reduce_scatter_tensor",                                                 \
    "_reduce_scatter_base_",                                                 \
    All)                                                                     \
  X(ReduceScatterTensorCoalesced,                                            \
    "reduce_scatter_tensor_coalesced",                                       \
    "reduce_scatter_tensor_coalesced_",                                      \
    All)                                                                     \
  X(AllToAll, "all_to_all", "alltoall_", All)                                \
  X(AllToAllSingle, "all_to_all_single", "alltoall_base_", All)              \
  X(Gather, "gather", "gather_", Root)                                       \
  X(Scatter, "scatter", "scatter_", Root)                                    \
  X(Barrier, "barrier", "barrier", All)                                      \
  X(MonitoredBarrier, "monitored_barrier", "monitored_barrier_", All)        \
  X(Send, "send", "send", Peer)                                              \
  X(Recv, "recv", "recv_", Peer)                                             \
  X(RecvAnySource, "recv_any_source", "recv_any_source_", Peer)

enum class Op : uint8_t {
#define X(name, text, dispatcher, awaits) k##name,
  COMMPROF_OPS(X)
#undef X
};

constexpr Awaits awaitsOf(Op op) noexcept {
  switch (op) {
#define X(name, text, dispatcher, awaits) \
  case Op::k##name:                       \
    return Awaits::k##awaits;
    COMMPROF_OPS(X)
#undef X
  }
  return Awaits::kAll; // a code of a newer recorder
}

// NCCL's own names of its algorithms and protocols.
#define COMMPROF_NCCL_ALGORITHMS(X)  \
  X(Unknown, "")                     \
  X(Tree, "TREE")                    \
  X(Ring, "RING")                    \
  X(CollnetDirect, "COLLNET_DIRECT") \
  X(CollnetChain, "COLLNET_CHAIN")   \
  X(Nvls, "NVLS")                    \
  X(NvlsTree, "NVLS_TREE")           \
  X(Pat, "PAT")                      \
  X(CopyEngine, "COPY_ENGINE")
#define COMMPROF_NCCL_PROTOCOLS(X) \
  X(Unknown, "")                   \
  X(Ll, "LL")                      \
  X(Ll128, "LL128")                \
  X(Simple, "SIMPLE")

// True for messages (sends and receives), which are numbered per peer. gloo has
// no future for a message, so a message ends when its wait ends.
constexpr bool isPointToPoint(Op op) noexcept {
  return awaitsOf(op) == Awaits::kPeer;
}

// Phases of a step. If phases are nested, only the outermost counts.
#define COMMPROF_PHASES(X) \
  X(Other, "other")        \
  X(Data, "data")          \
  X(Forward, "forward")    \
  X(Backward, "backward")  \
  X(Optimizer, "optimizer")

enum class Phase : uint8_t {
#define X(name, text) k##name,
  COMMPROF_PHASES(X)
#undef X
};

// Stages of a compressed bucket, in Record::aux of a Span.
enum class Stage : uint8_t { kEncode, kExchange, kReduce, kDecode };

// Bits of Record::flags.
inline constexpr uint32_t kFailed = 1; // End: completed with an error
inline constexpr uint32_t kDeviceAsync =
    2; // Issue: runs on a device; the host's End is not its completion
inline constexpr uint32_t kLastBucket = 4; // Bucket: last of the backward pass
inline constexpr uint32_t kRunDelayRead =
    8; // Finalize*: bytes_in holds the thread's run delay
inline constexpr uint32_t kDeviceTime = 16; // End: time of a device event
inline constexpr uint32_t kNonFinite =
    32; // Compression: some rank's gradients were not finite
inline constexpr uint32_t kSparse = 64; // Issue: ranks' sizes may differ
inline constexpr uint32_t kInIssue =
    128; // Wait: inside the call that issued op_id; its end does not mean
         // that the operation is complete
inline constexpr uint32_t kManualFinalize =
    256; // Finalize*, DeviceFinalize: the script called finalize_backward()

// In ns. If a wait is shorter, the operation was already complete.
inline constexpr uint64_t kBlockedNs = 1000;

// Values of Record::seq of a Step: who placed the boundary.
enum : uint32_t {
  kStepDeclared = 0, // the script
  kStepUpdated = 1, // found at an optimizer's update
  kStepSkipped = 2, // found at an update that GradScaler skipped
};

// A training loop counts as unmarked after this many backward passes that
// communicated, without a step mark.
inline constexpr uint64_t kSurelyUnmarked = 20;

// Value of Record::seq of a Phase whose samples cannot be counted.
inline constexpr uint32_t kSamplesUnknown = UINT32_MAX;

// Value of Record::seq of a message whose number is not known.
inline constexpr uint32_t kNoSeq = 0xffffffff;

// True if `seq` precedes `other`. Both are sequence numbers of collectives of
// one group, modulo 2**32. comes_before() in commprof/trace/schema.py does the
// same.
constexpr bool comesBefore(uint32_t seq, uint32_t other) noexcept {
  return seq != other && other - seq < uint32_t(1) << 31;
}

// One cache line. record_fields.inc describes the members for each kind.
struct alignas(64) Record {
  uint64_t timestamp_ns = 0; // CLOCK_MONOTONIC
  uint64_t op_id = 0; // id of the operation, unique in its process
  Kind kind = Kind::kNone;
  Op op = Op::kOther;
  uint8_t dtype = 0; // c10::ScalarType
  uint8_t reduce_op = 0; // c10d::ReduceOp::RedOpType
  uint32_t group = 0; // id of the process group; 0: none
  uint32_t thread = 0; // kernel thread id
  uint32_t aux = 0; // root or peer rank, bucket index, or phase code
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  // Sequence number of the collective in its group, equal on all ranks. For a
  // message, its number among the messages of the two ranks, or kNoSeq.
  uint32_t seq = 0;
  uint32_t flags = 0; // bits such as kFailed
  uint64_t value = 0;
};
static_assert(sizeof(Record) == 64, "a record is one cache line");

// Pointers to the members of Record, named by kind and field. For example,
// record.*field::kHostCountsMinorFaults = 3 sets the field MinorFaults in a
// record of kind HostCounts.
namespace field {
#define X(kind, name, slot, content, meaning) \
  inline constexpr auto k##kind##name = &Record::slot;
#include "core/record_fields.inc"
#undef X
} // namespace field

constexpr bool hasSharedSlots() noexcept {
  struct Slot {
    Kind kind;
    size_t offset;
  };
  constexpr Slot slots[] = {
#define X(kind, name, slot, content, meaning) \
  {Kind::k##kind, offsetof(Record, slot)},
#include "core/record_fields.inc"
#undef X
  };
  for (const Slot& slot : slots) {
    int fields = 0;
    for (const Slot& other : slots) {
      fields += slot.kind == other.kind && slot.offset == other.offset;
    }
    if (fields > 1) {
      return true;
    }
  }
  return false;
}
static_assert(!hasSharedSlots(), "two fields of one kind are in the same slot");

} // namespace commprof
