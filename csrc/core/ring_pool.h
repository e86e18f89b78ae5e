// The ring buffers of this process. A thread that records holds one ring until
// the thread ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/ring.h"

namespace commprof {

// One per process, never destroyed. Its lock is not held during file I/O of the
// trace, so that a thread that gets or returns its ring never waits for a disk.
class RingPool {
 public:
  // Largest number of threads that record at the same time.
  static constexpr size_t kMaxRings = 256;

  // Begins a trace: empties every ring and gives it a new file, `prefix` +
  // "<n>.ring". There are no files if `prefix` is empty. Files use only a small
  // part of the free space of their file system, usually /dev/shm, because
  // DataLoader workers need space there too. If there is too little space, new
  // rings are smaller or have no files. An old ring keeps its capacity.
  void open(const std::string& prefix, uint64_t capacity, uint64_t session);
  // Ends a trace: removes the files. The memory stays, because threads may hold
  // the rings.
  void close() noexcept;

  // Returns the calling thread's ring, or null if the thread can get none: all
  // rings are in use, no trace is open, there is no memory, or the thread is
  // ending.
  Ring* mine() noexcept {
    const Lent& lent = t_lent;
    const bool valid = lent.ring != nullptr &&
        lent.generation == generation_.load(std::memory_order_relaxed);
    return valid ? lent.ring : lend();
  }

  // Returns all rings, the oldest first. Rings are never destroyed.
  std::vector<Ring*> rings();

  // Handlers of fork(). A child leaves the parent's rings alone and begins
  // without rings.
  void beforeFork() noexcept;
  void afterForkParent() noexcept;
  void afterForkChild() noexcept;

 private:
  struct Lent {
    Ring* ring;
    uint64_t generation;
    // Value of supply_ when the thread could get no ring; else 0.
    uint64_t refused_at;
    bool thread_ended;
  };
  // Returns the ring to the pool when the thread ends.
  struct Return {
    RingPool* pool = nullptr;
    ~Return();
  };

  Ring* lend() noexcept;
  Ring* freeOrNewLocked() noexcept;
  uint64_t roomLocked() const noexcept;
  uint64_t capacityForLocked(uint64_t room) const noexcept;
  void takeBack(Ring* ring) noexcept;
  std::string path(size_t index) const;

  // Trivially destructible, so that it can be read after ~Return(): the
  // destructor of another thread-local may push later, and then finds no ring.
  static constinit thread_local Lent t_lent;
  static thread_local Return t_return;

  std::atomic<uint64_t> generation_{1}; // changed in a forked child
  std::atomic<uint64_t> supply_{1}; // changes when a ring may be free again

  std::mutex mutex_; // guards everything below
  std::string prefix_;
  uint64_t capacity_ = 0;
  uint64_t session_ = 0; // 0: no trace is open
  std::vector<Ring*> rings_;
  std::vector<Ring*> free_; // rings of threads that ended
};

} // namespace commprof
