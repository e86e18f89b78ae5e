// Handles of events. They are numbers and never addresses: NCCL uses a handle
// after it has stopped the event, stops some twice, and may pass one on to
// another process. A number whose slot holds something else by now is ignored.
#pragma once

#include <cstdint>

namespace commprof::nccl {

enum class Tag : uint8_t {
  kNone, // nothing is known of the event
  kCall, // of the API, in the table of recent calls
  kCapturedCall, // of the API while a CUDA graph was captured
  kOperation, // a collective or message of a launched kernel
  kChannel, // one channel of an operation's kernel
  kTransfer, // an operation's sends to one peer, or receives from it
  kStep, // one of a transfer's steps in flight
};

struct Handle {
  Tag tag = Tag::kNone;
  uint8_t channel = 0; // of a step: its place among those in flight
  uint32_t slot = 0; // 24 bits
  uint32_t use = 0; // how often the slot had been used before; wraps around

  static Handle of(const void* pointer) noexcept {
    const auto bits = reinterpret_cast<uintptr_t>(pointer);
    static_assert(sizeof(bits) == 8);
    const auto tag = uint8_t(bits & 7);
    return {
        tag <= uint8_t(Tag::kStep) ? Tag(tag) : Tag::kNone,
        uint8_t(bits >> 3 & 127),
        uint32_t(bits >> 10 & 0xffffff),
        uint32_t(bits >> 34)};
  }

  void* pointer() const noexcept {
    return reinterpret_cast<void*>(
        uintptr_t(tag) | uintptr_t(channel & 127) << 3 |
        uintptr_t(slot & 0xffffff) << 10 | uintptr_t(use) << 34);
  }
};

// Bits of Handle::use that a handle holds.
inline constexpr uint32_t kUseMask = (1u << 30) - 1;

} // namespace commprof::nccl
