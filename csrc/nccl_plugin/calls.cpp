#include "nccl_plugin/calls.h"

#include <array>
#include <atomic>

namespace commprof::nccl {

namespace {

using Entry = ValueOfUse<ApiCall>;

struct CapturedEntry : Entry {
  // `part` of the operation that begins each replay; 0 before the first replay.
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
  g_recent[turn.slot].write(call, turn.use);
  return {Tag::kCall, 0, turn.slot, turn.use};
}

Handle rememberCapturedCall(const ApiCall& call) noexcept {
  if (g_captures.load(std::memory_order_relaxed) < kCapturedCalls) {
    const uint32_t slot = g_captures.fetch_add(1, std::memory_order_relaxed);
    if (slot < kCapturedCalls) {
      g_captured[slot].write(call, 0);
      return {Tag::kCapturedCall, 0, slot, 0};
    }
  }
  return {Tag::kCapturedCall, 0, kNoSlot, 0};
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
