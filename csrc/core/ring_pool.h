// The rings of this process. A thread that records is lent one until it ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/ring.h"

namespace commprof {

// One per process, never destroyed. Its lock is never held over the trace's
// file I/O, so no thread's first push, and no thread's end, waits for a disk.
class RingPool {
 public:
  // More threads than this at once are not recorded; memory stays bounded.
  static constexpr size_t kMaxRings = 256;

  // A trace begins: every ring is emptied and gets a file of its own,
  // `prefix` + "<n>.ring"; no file if `prefix` is empty. A ring keeps the
  // capacity that it was made with.
  //
  // Files take a small share of what is free there, which is looked up for each
  // of them: DataLoader workers live on the same memory. Where there is less
  // room new rings are smaller, and without room they are no files.
  void open(const std::string& prefix, uint64_t capacity, uint64_t session);
  // The trace is closed: nobody needs the files. The memory stays, because
  // threads hold the rings.
  void close() noexcept;

  // The calling thread's ring. Null if all are lent, if the thread has none and
  // no trace is open, without memory, or at the very end of a thread.
  Ring* mine() noexcept {
    const Lent& lent = t_lent;
    const bool valid = lent.ring != nullptr &&
        lent.generation == generation_.load(std::memory_order_relaxed);
    return valid ? lent.ring : lend();
  }

  // All rings made so far, in the order of making. They are never unmade.
  std::vector<Ring*> rings();

  // A forked child leaves the parent's rings alone and begins with none.
  void beforeFork() noexcept;
  void afterForkParent() noexcept;
  void afterForkChild() noexcept;

 private:
  struct Lent {
    Ring* ring;
    uint64_t generation;
    uint64_t refused_at; // supply_ when no ring was to be had
    bool thread_ended;
  };
  // Takes the ring back when the thread ends.
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

  // Trivial, so that a push from another thread-local's destructor, when the
  // ring is already somebody else's, still finds it.
  static constinit thread_local Lent t_lent;
  static thread_local Return t_return;

  std::atomic<uint64_t> generation_{1}; // changes in a forked child
  std::atomic<uint64_t> supply_{1}; // changes when there may be a ring again

  std::mutex mutex_; // everything below
  std::string prefix_;
  uint64_t capacity_ = 0;
  uint64_t session_ = 0; // 0: no trace is open
  std::vector<Ring*> rings_;
  std::vector<Ring*> free_; // their threads ended
};

} // namespace commprof
