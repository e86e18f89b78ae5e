#include "nccl_plugin/operations.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>

#include "base/clock.h"
#include "core/recorder.h"
#include "nccl_plugin/run.h"

namespace commprof::nccl {

namespace {

// Times at which the channels of an operation began, or times at which they
// ended.
struct Moments {
  std::bitset<kMaxChannels> channels;
  uint8_t count = 0;
  uint64_t first_ns = 0; // valid once `count` is above 0
  uint64_t last_ns = 0;

  void add(uint8_t channel, uint64_t time_ns) noexcept {
    channels[channel] = true;
    first_ns = count == 0 ? time_ns : std::min(first_ns, time_ns);
    last_ns = std::max(last_ns, time_ns);
    ++count;
  }
  uint64_t spreadNs() const noexcept {
    return last_ns - first_ns;
  }
};

struct Operation {
  bool pending = false;
  Communicator* communicator = nullptr;
  uint32_t generation = 0; // generation of the communicator
  Launched launched;
  Moments begins;
  Moments ends;
  // The times cannot be used: a channel ended before it began, only some
  // channels have times of the GPU, or the GPU's clock was set meanwhile.
  bool contradictory = false;
  bool timed = false; // the times are the GPU's, not the host's
};

struct Slot {
  // Lock for a few instructions. Threads of NCCL's proxy wait for it. A thread
  // that begins an operation takes the next slot instead.
  std::atomic_flag used;
  uint32_t use = 0;
  Operation operation;
};

constinit std::array<Slot, kOperations> g_slots{};
std::atomic<uint64_t> g_begun{0};

bool isCurrent(const Operation& operation) noexcept {
  return operation.communicator->open.load(std::memory_order_relaxed) &&
      operation.communicator->generation.load(std::memory_order_relaxed) ==
      operation.generation;
}

uint64_t onHost(const Operation& operation, uint64_t time_ns) noexcept {
  return operation.timed ? operation.communicator->gpuToHost(time_ns) : time_ns;
}

// Packs two durations into 64 bits, 32 bits each. If a duration does not fit,
// the largest value is stored.
uint64_t packed(uint64_t high_ns, uint64_t low_ns) noexcept {
  constexpr uint64_t kMost = UINT32_MAX;
  return std::min(high_ns, kMost) << 32 | std::min(low_ns, kMost);
}

void complete(Operation& operation) noexcept {
  operation.pending = false;
  Recorder& recorder = Recorder::instance();
  Record op = operation.launched.op;
  op.timestamp_ns = onHost(operation, operation.begins.first_ns);
  // A kernel cannot begin before its call or, in a CUDA graph, before the
  // replay. An earlier begin means that the GPU's clock was set back.
  const auto after_ns = int64_t(op.timestamp_ns - operation.launched.issue_ns);
  if (after_ns < -GpuClock::kStrangeNs) {
    recordUntimed(operation.launched);
    return;
  }
  op.value = onHost(operation, operation.ends.last_ns);
  op.bytes_out = packed(operation.begins.spreadNs(), operation.ends.spreadNs());
  op.flags = operation.timed ? kDeviceTime : 0;
  recorder.push(op);
  if (isJoined()) {
    return;
  }
  Record time;
  time.kind = Kind::kDeviceReady;
  time.op = op.op;
  time.op_id = op.op_id;
  time.thread = operation.launched.thread;
  time.bytes_in = operation.launched.issue_ns;
  time.timestamp_ns = op.timestamp_ns;
  recorder.push(time);
  time.kind = Kind::kEnd;
  time.bytes_in = 0;
  time.flags = kDeviceTime;
  time.timestamp_ns = op.value;
  recorder.push(time);
}

// Ends an operation for which NCCL will report no further event.
void settle(Operation& operation) noexcept {
  if (!operation.pending) {
    return;
  }
  if (!operation.contradictory && operation.ends.count > 0 &&
      operation.ends.count == operation.begins.count &&
      operation.ends.count >= operation.launched.channels.least &&
      isCurrent(operation)) {
    complete(operation);
    return;
  }
  operation.pending = false;
  recordUntimed(operation.launched);
}

// Returns a handle's operation; null if the slot was reused, the operation is
// no longer pending, or its communicator was closed. The caller must hold the
// slot.
Operation* pendingOf(Slot& slot, Handle handle) noexcept {
  const bool same = slot.use == handle.use() && slot.operation.pending &&
      isCurrent(slot.operation);
  return same ? &slot.operation : nullptr;
}

} // namespace

void recordUntimed(const Launched& launched) noexcept {
  Record op = launched.op;
  op.timestamp_ns = op.value = launched.issue_ns;
  Recorder::instance().push(op);
}

Handle beginOperation(
    Communicator& communicator,
    const Launched& launched) noexcept {
  // Other threads never hold this many consecutive slots at the same time, so
  // one of these tries finds a free slot.
  constexpr int kTries = 8;
  for (int i = 0; i < kTries; ++i) {
    const Turn turn = nextTurn(g_begun, kOperations);
    Slot& slot = g_slots[turn.slot];
    if (slot.used.test_and_set(std::memory_order_acquire)) {
      continue;
    }
    settle(slot.operation);
    slot.use = turn.use;
    slot.operation = Operation();
    slot.operation.pending = true;
    slot.operation.communicator = &communicator;
    slot.operation.generation = communicator.generation.load();
    slot.operation.launched = launched;
    const Handle handle{Tag::kOperation, 0, turn.slot, turn.use};
    slot.used.clear(std::memory_order_release);
    return handle;
  }
  recordUntimed(launched);
  return {};
}

OperationId idOf(Handle handle) noexcept {
  if (handle.tag() != Tag::kOperation || handle.slot() >= kOperations) {
    return {};
  }
  Slot& slot = g_slots[handle.slot()];
  const Held held(slot.used);
  const Record& op = slot.operation.launched.op;
  return slot.use == handle.use() ? OperationId{op.op_id, op.group}
                                  : OperationId{};
}

Handle beginChannel(Handle handle, uint8_t channel, uint64_t gpu_ns) noexcept {
  if (handle.tag() != Tag::kOperation || handle.slot() >= kOperations ||
      channel >= kMaxChannels) {
    return {};
  }
  const uint64_t now_ns = nowNs();
  Slot& slot = g_slots[handle.slot()];
  const Held held(slot.used);
  Operation* operation = pendingOf(slot, handle);
  if (operation == nullptr || operation->begins.channels[channel]) {
    return {};
  }
  if (operation->begins.count == 0) {
    operation->timed = gpu_ns != 0;
  }
  operation->contradictory |= operation->timed != (gpu_ns != 0) ||
      (gpu_ns != 0 && !operation->communicator->sawGpuTime(gpu_ns, now_ns));
  operation->begins.add(channel, operation->timed ? gpu_ns : now_ns);
  return {Tag::kChannel, channel, handle.slot(), handle.use()};
}

void endChannel(Handle handle, uint64_t gpu_ns) noexcept {
  if (handle.tag() != Tag::kChannel || handle.slot() >= kOperations) {
    return;
  }
  const uint64_t now_ns = nowNs();
  Slot& slot = g_slots[handle.slot()];
  const Held held(slot.used);
  Operation* operation = pendingOf(slot, handle);
  if (operation == nullptr || !operation->begins.channels[handle.channel()] ||
      operation->ends.channels[handle.channel()]) {
    return;
  }
  const uint64_t time_ns = operation->timed ? gpu_ns : now_ns;
  operation->contradictory |=
      operation->timed != (gpu_ns != 0) || time_ns < operation->begins.first_ns;
  if (operation->timed && !operation->contradictory) {
    operation->contradictory =
        !operation->communicator->sawGpuTime(gpu_ns, now_ns);
  }
  operation->ends.add(handle.channel(), time_ns);
  if (operation->ends.count == operation->launched.channels.most &&
      !operation->contradictory) {
    complete(*operation);
  }
}

void settleOperations(const Communicator* communicator) noexcept {
  for (Slot& slot : g_slots) {
    const Held held(slot.used);
    if (slot.operation.pending &&
        (communicator == nullptr ||
         slot.operation.communicator == communicator)) {
      settle(slot.operation);
    }
  }
}

} // namespace commprof::nccl
