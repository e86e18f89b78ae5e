// Stores when waits returned. An operation was complete when a wait for it
// returned.
//
// The thread that completes an operation first wakes the waiting thread, and
// then runs the callbacks of the operation's future. If the woken thread takes
// over the core, a callback may run milliseconds late. The return of the wait
// then bounds the completion time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace commprof {

// Thread-safe; no function blocks.
class WaitReturns {
 public:
  // Number of latest operations that are stored.
  static constexpr size_t kMost = 1024;

  static WaitReturns& instance() noexcept;

  // Stores a return. Later returns for the same operation are ignored.
  void note(uint64_t op_id, uint64_t returned_ns) noexcept;
  // Returns `seen_ns` or the time at which a wait for the operation returned,
  // whichever is earlier.
  uint64_t completionNs(uint64_t op_id, uint64_t seen_ns) const noexcept;

 private:
  struct Return {
    std::atomic<uint64_t> op_id{0}; // 0: none, or being written
    std::atomic<uint64_t> returned_ns{0};
  };
  std::array<Return, kMost> returns_; // index: op_id modulo kMost
};

} // namespace commprof
