// The ring buffers of this process. Each thread that records has one of them
// until the thread ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/ring.h"

namespace commprof {

// One per process, never destroyed. Its lock is never held during the trace's
// file I/O, so that no thread's first push, and no thread's end, waits for a
// disk.
class RingPool {
 public:
  // Largest number of threads recorded at a time; it bounds the memory.
  static constexpr size_t kMaxRings = 256;

  // Begins a trace: empties every ring and gives it a file of its own, `prefix`
  // + "<n>.ring"; no file if `prefix` is empty. A ring keeps the capacity that
  // it was made with. Files use only a small part of the free space of their
  // file system, usually /dev/shm, because DataLoader workers need space there
  // too. The free space is read for each file. If there is too little space,
  // new rings are smaller; if there is none, they have no files.
  void open(const std::string& prefix, uint64_t capacity, uint64_t session);
  // Ends a trace: removes the files. The memory stays, because threads hold the
  // rings.
  void close() noexcept;

  // Returns the calling thread's ring. Null if all rings are in use, if the
  // thread has no ring and no trace is open, if there is no memory, or if the
  // thread is about to end.
  Ring* mine() noexcept {
    const Lent& lent = t_lent;
    const bool valid = lent.ring != nullptr &&
        lent.generation == generation_.load(std::memory_order_relaxed);
    return valid ? lent.ring : lend();
  }

  // Returns all rings made so far, in the order in which they were made. Rings
  // are never destroyed.
  std::vector<Ring*> rings();

  // Handlers of fork(): a child leaves the parent's rings alone, and begins
  // without rings.
  void beforeFork() noexcept;
  void afterForkParent() noexcept;
  void afterForkChild() noexcept;

 private:
  struct Lent {
    Ring* ring;
    uint64_t generation;
    // Value of supply_ when no ring was left for the thread; else 0.
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

  // Trivially destructible: the destructor of another thread-local may push
  // after ~Return(). Such a push can still read this object, and finds no ring.
  static constinit thread_local Lent t_lent;
  static thread_local Return t_return;

  std::atomic<uint64_t> generation_{1}; // changed in a forked child
  std::atomic<uint64_t> supply_{1}; // changes when there may be a ring again

  std::mutex mutex_; // guards everything below
  std::string prefix_;
  uint64_t capacity_ = 0;
  uint64_t session_ = 0; // 0: no trace is open
  std::vector<Ring*> rings_;
  std::vector<Ring*> free_; // rings of threads that ended
};

} // namespace commprof
