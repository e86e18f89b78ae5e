#include "nccl_plugin/calls.h"

#include <array>
#include <atomic>

namespace commprof::nccl {

namespace {

// Any thread may read an entry while another one writes it; during the write,
// `use` is odd.
struct Entry {
  std::atomic<uint32_t> use{0}; // twice the number of uses so far
  std::atomic<uint64_t> begin_ns{0};
  std::atomic<uint32_t> thread{0};
  std::atomic<uint8_t> datatype{0};
  std::atomic<uint64_t> op_id{0};

  void write(const ApiCall& call, uint32_t new_use) noexcept {
    use.store(2 * new_use - 1, std::memory_order_seq_cst);
    begin_ns.store(call.begin_ns, std::memory_order_release);
    thread.store(call.thread, std::memory_order_release);
    datatype.store(call.datatype, std::memory_order_release);
    op_id.store(call.op_id, std::memory_order_release);
    use.store(2 * new_use, std::memory_order_release);
  }

  bool read(ApiCall& call, uint32_t wanted_use) const noexcept {
    const uint32_t before = use.load(std::memory_order_acquire);
    call.begin_ns = begin_ns.load(std::memory_order_acquire);
    call.thread = thread.load(std::memory_order_acquire);
    call.datatype = datatype.load(std::memory_order_acquire);
    call.op_id = op_id.load(std::memory_order_acquire);
    const uint32_t after = use.load(std::memory_order_acquire);
    return before == after && before == 2 * wanted_use;
  }
};

struct CapturedEntry : Entry {
  // `part` of the first operation of each replay; 0: the call was never
  // replayed.
  std::atomic<uint32_t> first_part{0};
  std::atomic<uint32_t> replays{0};

  uint32_t replayOf(uint32_t part) noexcept {
    uint32_t first = 0;
    return first_part.compare_exchange_strong(first, part) || first == part
        ? replays.fetch_add(1, std::memory_order_relaxed) + 1
        : replays.load(std::memory_order_relaxed);
  }
};

constinit std::array<Entry, kCalls> g_recent{};
constinit std::array<CapturedEntry, kCapturedCalls> g_captured{};
std::atomic<uint64_t> g_calls{0};
std::atomic<uint32_t> g_captures{0};

constexpr uint32_t kNoSlot = kCapturedCalls;

} // namespace

Handle rememberCall(const ApiCall& call) noexcept {
  const Turn turn = nextTurn(g_calls, kCalls);
  const uint32_t use = (turn.use + 1) & kUseMask;
  g_recent[turn.slot].write(call, use);
  return {Tag::kCall, 0, turn.slot, use};
}

Handle rememberCapturedCall(const ApiCall& call) noexcept {
  if (g_captures.load(std::memory_order_relaxed) < kCapturedCalls) {
    const uint32_t slot = g_captures.fetch_add(1, std::memory_order_relaxed);
    if (slot < kCapturedCalls) {
      g_captured[slot].write(call, 1);
      return {Tag::kCapturedCall, 0, slot, 1};
    }
  }
  return {Tag::kCapturedCall, 0, kNoSlot, 1};
}

Caller callerOf(Handle handle, uint32_t part) noexcept {
  Caller caller;
  if (handle.tag() == Tag::kCapturedCall) {
    caller.origin = Origin::kReplay;
    caller.known = handle.slot() < kCapturedCalls &&
        g_captured[handle.slot()].read(caller.call, handle.use());
    caller.replay = caller.known ? g_captured[handle.slot()].replayOf(part)
                                 : kReplayUnknown;
  } else if (handle.tag() == Tag::kCall) {
    caller.known = handle.slot() < kCalls &&
        g_recent[handle.slot()].read(caller.call, handle.use());
  }
  return caller;
}

} // namespace commprof::nccl
