// Single-producer single-consumer ring of records in shared, file-backed
// memory.
//
// The producer is the thread that owns the ring. The consumer is the thread
// with the recorder's drain lock, or, after the process died, a reader of the
// file. The file survives SIGKILL, so that no pushed record is lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "core/record.h"

namespace commprof {

inline constexpr uint64_t kRingMagic = 0x3130474e49525043; // "CPRING01"

struct RingHeader {
  std::atomic<uint64_t> magic; // set last: the header is complete then
  uint32_t record_bytes;
  uint32_t pid;
  uint64_t capacity; // records; a power of two
  std::atomic<uint64_t> session; // of the trace that the content belongs to
  char pad0[32];
  alignas(64) std::atomic<uint64_t> head; // next record to write
  alignas(64) std::atomic<uint64_t> tail; // next record to drain
  alignas(64) std::atomic<uint64_t> dropped; // pushes refused by a full ring
};
static_assert(sizeof(RingHeader) == 256, "part of the ring file's format");
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class Ring {
 public:
  // Creates the file at `path` with room for `capacity` records. All of it is
  // allocated now, so that a full file system fails here and never as SIGBUS in
  // push(). If the path is empty or the file cannot be allocated, the ring uses
  // private memory, which dies with the process. Throws std::bad_alloc if that
  // memory cannot be allocated either.
  Ring(const std::string& path, uint64_t capacity, uint64_t session);
  ~Ring() = delete; // lives as long as the process: any thread may hold it

  // Empties the ring and moves it to another file at the same address, for the
  // next trace. Needs the drain lock. A thread that is still inside a push()
  // for the previous trace does no harm, because the ring's counters go on.
  // Uses private memory afterwards if there is no room for the file.
  void rebind(const std::string& path, uint64_t session) noexcept;
  // Removes the file; the ring's memory then dies with the process.
  void unlinkFile() noexcept;

  // Size of a ring with room for `capacity` records, in memory or as a file.
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

  // Owning thread only. Wait-free; a full ring counts the lost record. Returns
  // true from time to time while the ring is more than half full and should be
  // drained.
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
    // The drain left the slots in another core's cache: prefetch the slot after
    // the next one while this thread does something else.
    prefetchForWrite(&records_[(head + 2) & mask_]);
    if ((head & look_mask_) != 0) {
      return false;
    }
    known_tail_ = header_->tail.load(std::memory_order_acquire);
    return head - known_tail_ > capacity_ / 2;
  }

  // Needs the drain lock. Calls sink(const Record*, count) for each of at most
  // two runs of records that are not drained. Returns the mark for commit().
  // Call commit() once the records are stored elsewhere; until then they stay
  // readable in the ring.
  template <class Sink>
  uint64_t peek(Sink&& sink) const {
    const uint64_t head = pushed();
    peek(sink, head);
    return head;
  }
  // The same for the records up to `head`, a value that pushed() returned.
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
  // push() checks how full the ring is once per quarter of the ring's capacity,
  // but not more often than every 256 pushes, nor less often than every 1024.
  const uint64_t look_mask_;
  uint64_t known_tail_ = 0; // the owner's copy; the tail only increases
  std::string path_; // empty: not file-backed
};

} // namespace commprof
