// Single-producer single-consumer ring of records in shared, file-backed
// memory.
//
// The producer is the thread that owns the ring; the consumer is whoever holds
// the recorder's drain lock, or, after the process died, a reader of the file.
// The file outlives SIGKILL: nothing that was pushed is lost with the process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "core/record.h"

namespace commprof {

inline constexpr uint64_t kRingMagic = 0x3130474e49525043; // "CPRING01"

struct RingHeader {
  std::atomic<uint64_t> magic; // set last: who sees it sees a whole header
  uint32_t record_bytes;
  uint32_t pid;
  uint64_t capacity; // records; a power of two
  std::atomic<uint64_t> session; // trace this ring's content belongs to
  char pad0[32];
  alignas(64) std::atomic<uint64_t> head; // next record to write
  alignas(64) std::atomic<uint64_t> tail; // next record to drain
  alignas(64) std::atomic<uint64_t> dropped; // pushes refused by a full ring
};
static_assert(sizeof(RingHeader) == 256, "part of the ring file's format");
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class Ring {
 public:
  // Creates the file at `path` with room for `capacity` records, all of it
  // allocated now so that a full file system shows here and never as SIGBUS in
  // push(). An empty path, or a failure, gives private memory instead, which
  // works alike but dies with the process. Throws std::bad_alloc if even that
  // fails.
  Ring(const std::string& path, uint64_t capacity, uint64_t session);
  ~Ring() = delete; // lives as long as the process: any thread may hold it

  // Moves the ring, empty, to another file at the same address, for the next
  // trace. Drain lock only. A thread that is still inside a push() of the trace
  // before does no harm: the ring goes on counting where it was. Not
  // file-backed afterwards if there is no room.
  void rebind(const std::string& path, uint64_t session) noexcept;
  // Removes the file; the ring goes on in memory that dies with the process.
  void unlinkFile() noexcept;

  // Of a ring with room for so many records, in memory or as a file.
  static uint64_t bytes(uint64_t capacity) noexcept {
    return sizeof(RingHeader) + capacity * sizeof(Record);
  }
  uint64_t bytes() const noexcept {
    return bytes(capacity_);
  }
  bool fileBacked() const noexcept {
    return !path_.empty();
  }
  RingHeader& header() noexcept {
    return *header_;
  }

  // Owning thread only. Wait-free; a full ring counts the loss. True now and
  // then while the ring is more than half full: time to drain it.
  bool push(const Record& record) noexcept {
    const uint64_t head = header_->head.load(std::memory_order_relaxed);
    if (head - known_tail_ >= capacity_) {
      known_tail_ = header_->tail.load(std::memory_order_acquire);
      if (head - known_tail_ >= capacity_) {
        header_->dropped.fetch_add(1, std::memory_order_relaxed);
        return false;
      }
    }
    records_[head & mask_] = record;
    header_->head.store(head + 1, std::memory_order_release);
    // The drain left the slots in another core's cache: fetch the next but one
    // while this thread does something else.
    prefetchForWrite(&records_[(head + 2) & mask_]);
    if ((head & look_mask_) != 0) {
      return false;
    }
    known_tail_ = header_->tail.load(std::memory_order_acquire);
    return head - known_tail_ > capacity_ / 2;
  }

  // Drain lock only. Calls sink(const Record*, count) for the at most two runs
  // of records not yet drained, and returns the mark to commit() once they are
  // safe elsewhere; until then they stay readable in the ring.
  template <class Sink>
  uint64_t peek(Sink&& sink) const {
    const uint64_t head = pushed();
    peek(sink, head);
    return head;
  }
  // Of them those up to `head`, which pushed() returned.
  template <class Sink>
  void peek(Sink&& sink, uint64_t head) const {
    const uint64_t tail = header_->tail.load(std::memory_order_relaxed);
    const uint64_t first = std::min(head - tail, capacity_ - (tail & mask_));
    if (first > 0) {
      sink(&records_[tail & mask_], first);
    }
    if (head - tail > first) {
      sink(&records_[0], head - tail - first);
    }
  }
  uint64_t pushed() const noexcept {
    return header_->head.load(std::memory_order_acquire);
  }
  void commit(uint64_t mark) noexcept {
    header_->tail.store(mark, std::memory_order_release);
  }

 private:
  static void prefetchForWrite(const void* address) noexcept {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
    __builtin_prefetch(address, 1);
#endif
  }
  void* map(uint64_t session, uint64_t position) noexcept;

  RingHeader* header_;
  Record* records_;
  const uint64_t capacity_;
  const uint64_t mask_;
  // Every 1024 pushes, in a small ring every 256.
  const uint64_t look_mask_;
  uint64_t known_tail_ = 0; // the owner's copy; the tail only moves on
  std::string path_; // empty: not file-backed
};

} // namespace commprof
