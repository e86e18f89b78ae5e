// Handles of events. A handle is a number and not an address: NCCL may use a
// handle after it has stopped the event, stop an event twice, or pass a handle
// to another process. A handle is ignored if its slot was reused. Handles of
// the user's own plugin (user_plugin.h) may be addresses.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

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
// Largest number of captured calls in the life of the process. Their slots are
// never reused.
inline constexpr uint32_t kCapturedCalls = 1 << 16;
inline constexpr uint32_t kOperations = 1 << 14;
inline constexpr uint32_t kMaxChannels = 128; // of one operation
inline constexpr uint32_t kTransfers = 1 << 13;
inline constexpr uint32_t kStepsInFlight = 8; // of a transfer (NCCL_STEPS)

// One word, so that it is passed in a register.
class Handle {
 public:
  constexpr Handle() = default;
  // `channel`: 7 bits; for a step, its place among the steps in flight. `slot`:
  // 24 bits. `use`: number of earlier uses of the slot; 30 bits, wraps around.
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

// The next slot of a table whose slots are used one after the other.
struct Turn {
  uint32_t slot;
  uint32_t use; // number of earlier uses of the slot, as in a handle
};
inline Turn nextTurn(std::atomic<uint64_t>& taken, uint32_t slots) noexcept {
  const uint64_t ticket = taken.fetch_add(1, std::memory_order_relaxed);
  return {uint32_t(ticket % slots), uint32_t(ticket / slots) & kUseMask};
}

// A value that any thread may read while another thread replaces it. An object
// of zero bytes is valid and holds no value.
template <class Value>
class ValueOfUse {
 public:
  // `use`: as in the value's handle.
  void write(const Value& value, uint32_t use) noexcept {
    std::array<uint64_t, kWords> words{};
    std::memcpy(words.data(), &value, sizeof(value));
    written_.store(0, std::memory_order_seq_cst);
    for (size_t i = 0; i < kWords; ++i) {
      words_[i].store(words[i], std::memory_order_release);
    }
    written_.store(use + 1, std::memory_order_release);
  }

  // Returns false if the slot holds no value of this use.
  bool read(Value& value, uint32_t use) const noexcept {
    std::array<uint64_t, kWords> words;
    const uint32_t before = written_.load(std::memory_order_acquire);
    for (size_t i = 0; i < kWords; ++i) {
      words[i] = words_[i].load(std::memory_order_acquire);
    }
    const uint32_t after = written_.load(std::memory_order_acquire);
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(value));
    return before == after && before == use + 1;
  }

 private:
  static_assert(std::is_trivially_copyable_v<Value>);
  static constexpr size_t kWords = (sizeof(Value) + 7) / 8;
  // Use of the value plus 1. 0: there is no value, or write() is replacing it.
  std::atomic<uint32_t> written_{0};
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

// Holds a spin lock, for a few instructions.
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
