// Waits that have returned: the awaited operation was complete by then.
//
// The thread that completes an operation wakes the waiting thread before it
// runs the callbacks of the operation's future, and the woken thread may take
// that thread's core. A callback may then record the completion milliseconds
// late. If a wait has returned by then, the time of its return bounds the
// completion time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace commprof {

// Any thread may call its functions; none blocks.
class WaitReturns {
 public:
  // Number of latest operations whose returns are kept.
  static constexpr size_t kMost = 1024;

  static WaitReturns& instance() noexcept;

  // Records a return; only the first one for an operation counts.
  void note(uint64_t op_id, uint64_t returned_ns) noexcept;
  // Returns `seen_ns`, or the time at which a wait for the operation returned,
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
