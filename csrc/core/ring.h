// Ring of records in shared, file-backed memory, for one producer and one
// consumer.
//
// The producer is the thread that owns the ring. The consumer is the thread
// that holds the recorder's drain lock. The file survives SIGKILL. After the
// process has died, a reader of the file takes the remaining records.
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
  std::atomic<uint64_t> session; // session of the trace
  char pad0[32];
  alignas(64) std::atomic<uint64_t> head; // next record to write
  alignas(64) std::atomic<uint64_t> tail; // next record to drain
  alignas(64) std::atomic<uint64_t> dropped; // records lost in a full ring
};
static_assert(sizeof(RingHeader) == 256, "part of the ring file's format");
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class Ring {
 public:
  // Creates the file at `path` with room for `capacity` records. All space is
  // allocated now, because push() would raise SIGBUS on a full file system. If
  // `path` is empty or the file cannot be allocated, uses private memory, which
  // is lost with the process. Throws std::bad_alloc if there is no memory.
  Ring(const std::string& path, uint64_t capacity, uint64_t session);
  ~Ring() = delete; // never destroyed, because any thread may hold it

  // Empties the ring and moves it to another file, for the next trace. The
  // address of the ring stays the same. Uses private memory if there is no room
  // for the file. Needs the drain lock. A push() that still runs for the
  // previous trace does no harm.
  void rebind(const std::string& path, uint64_t session) noexcept;
  // Removes the file. The ring's memory is then lost with the process.
  void unlinkFile() noexcept;

  // Returns the size of a ring with room for `capacity` records, in bytes.
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

  // Only the owning thread may call it. Wait-free. If the ring is full, the
  // record is lost and counted. Returns true from time to time if the ring is
  // more than half full and should be drained.
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
    // The drain left the slots in another core's cache, so the slot after the
    // next one is prefetched.
    prefetchForWrite(&records_[(head + 2) & mask_]);
    if ((head & look_mask_) != 0) {
      return false;
    }
    known_tail_ = header_->tail.load(std::memory_order_acquire);
    return head - known_tail_ > capacity_ / 2;
  }

  // Calls sink(const Record*, count) for the records that are not drained yet,
  // in at most two pieces. Returns a mark. Once the records are stored
  // elsewhere, pass the mark to commit(). Needs the drain lock.
  template <class Sink>
  uint64_t peek(Sink&& sink) const {
    const uint64_t head = pushed();
    peek(sink, head);
    return head;
  }
  // Like peek(sink), but only up to `head`, an earlier result of pushed().
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
  // Number of pushes between two checks of how full the ring is, minus 1. This
  // number is a quarter of the capacity, but at least 256 and at most 1024.
  const uint64_t look_mask_;
  uint64_t known_tail_ = 0; // perhaps outdated copy of the tail, for the owner
  std::string path_; // empty: not file-backed
};

} // namespace commprof
