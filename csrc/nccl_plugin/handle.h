// Handles of events. A handle is a number and never an address: NCCL may use a
// handle after it has stopped the event, stop an event twice, or pass a handle
// to another process. A handle whose slot was reused is ignored. Handles of the
// user's own plugin (user_plugin.h) may be addresses.
#pragma once

#include <atomic>
#include <cstdint>

namespace commprof::nccl {

enum class Tag : uint8_t {
  kNone, // nothing is known of the event
  kCall, // a call of NCCL's API
  kCapturedCall, // a call that a CUDA graph captured
  kOperation, // a collective or message of a launched kernel
  kChannel, // one channel of an operation's kernel
  kTransfer, // an operation's sends to one peer, or receives from it
  kStep, // one of a transfer's steps in flight
  kUsers, // a handle of the user's plugin whose bits look like a tag
};

// Largest numbers of slots in use at a time.
inline constexpr uint32_t kCalls = 1 << 12;
// Largest number of captured calls in the whole life of the process, since each
// keeps its slot.
inline constexpr uint32_t kCapturedCalls = 1 << 16;
inline constexpr uint32_t kOperations = 1 << 14;
inline constexpr uint32_t kMaxChannels = 128; // of one operation
inline constexpr uint32_t kTransfers = 1 << 13;
inline constexpr uint32_t kStepsInFlight = 8; // of a transfer (NCCL_STEPS)

// One word, so that it is passed in a register.
class Handle {
 public:
  constexpr Handle() = default;
  // `channel`: 7 bits; for a step: its place among the steps in flight. `slot`:
  // 24 bits. `use`: how often the slot had been used before; 30 bits, wraps
  // around.
  constexpr Handle(Tag tag, uint8_t channel, uint32_t slot, uint32_t use)
      : bits_(
            uint64_t(tag) | uint64_t(channel & 127) << 3 |
            uint64_t(slot & 0xffffff) << 10 | uint64_t(use) << 34) {}

  static Handle of(const void* pointer) noexcept {
    Handle handle;
    handle.bits_ = reinterpret_cast<uintptr_t>(pointer);
    return handle;
  }
  void* pointer() const noexcept {
    return reinterpret_cast<void*>(bits_);
  }

  Tag tag() const noexcept {
    return Tag(bits_ & 7);
  }
  uint8_t channel() const noexcept {
    return uint8_t(bits_ >> 3 & 127);
  }
  uint32_t slot() const noexcept {
    return uint32_t(bits_ >> 10 & 0xffffff);
  }
  uint32_t use() const noexcept {
    return uint32_t(bits_ >> 34);
  }

 private:
  static_assert(sizeof(void*) == sizeof(uint64_t));
  uint64_t bits_ = 0;
};

// Bits of Handle::use that a handle holds.
inline constexpr uint32_t kUseMask = (1u << 30) - 1;

// The next slot of a table whose slots are used in turn.
struct Turn {
  uint32_t slot;
  uint32_t use; // how often the slot had been used before, as in a handle
};
inline Turn nextTurn(std::atomic<uint64_t>& taken, uint32_t slots) noexcept {
  const uint64_t ticket = taken.fetch_add(1, std::memory_order_relaxed);
  return {uint32_t(ticket % slots), uint32_t(ticket / slots) & kUseMask};
}

// Holds a slot for a few instructions.
class Held {
 public:
  explicit Held(std::atomic_flag& flag) noexcept : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Held() {
    flag_.clear(std::memory_order_release);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  std::atomic_flag& flag_;
};

} // namespace commprof::nccl
