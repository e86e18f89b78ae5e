// Counts how often each rank came last to a collective, and how long this rank
// waited for each rank: in total, and per block of time. The blocks later show
// whether a rank is late by more than chance. The waits are computed as in
// commprof/analysis/step/waiting.py and exposure.py.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace commprof {

// A stretch in which the training thread waited.
struct Exposure {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  // Waiting time within the stretch. In a finalisation (DDP's loop over all
  // buckets at the end of backward), CPU time and separately recorded waits do
  // not count.
  uint64_t waited_ns = 0;
  uint64_t op_id = 0; // operation awaited in Work.wait; 0 for a finalisation
  uint64_t graph_task = 0; // id of the backward pass of a finalisation
};

// One bucket of a backward pass of this rank. Lists of buckets are in order of
// issue.
struct BucketTimes {
  double size_bytes = 0;
  uint64_t end_ns = 0;
  uint64_t last_arrival_ns = 0;
  uint32_t last_rank = 0;
};

// Returns the part of a wait for one collective before `arrival_ns`, the last
// arrival at the collective.
uint64_t waitedBefore(const Exposure& exposure, uint64_t arrival_ns) noexcept;

// Returns the last bucket whose last arrival came after all earlier buckets had
// been transferred: this arrival ended the waiting. `buckets` is not empty.
const BucketTimes& decidingBucket(
    const std::vector<BucketTimes>& buckets) noexcept;

// Returns the part of a finalisation's waiting before `arrival_ns`. Replays
// DDP's loop to distribute the waiting over the buckets, as exposure.py does.
// May throw std::bad_alloc.
uint64_t waitedBefore(
    const Exposure& finalisation,
    const std::vector<BucketTimes>& buckets,
    uint64_t arrival_ns);

// Not thread-safe. Its size is bounded: beyond kMaxCells or kMaxBlocks,
// neighbouring blocks of time are merged.
class LateRanks {
 public:
  static constexpr uint64_t kFirstBlockNs = uint64_t(1) << 24; // 17 ms
  static constexpr uint64_t kMaxBlocks = 128;
  static constexpr size_t kMaxCells = 1024;

  // Counts `rank` as the last rank that arrived at an operation, among the
  // ranks that this rank needed.
  void wasLast(uint32_t rank, uint64_t wait_ns);
  // Counts a wait of the training thread for `rank`, from `at_ns` on.
  void exposed(uint64_t at_ns, uint32_t rank, uint64_t wait_ns);
  // Adds `by_ns`, rounded to whole blocks of time, to all times that were
  // passed to exposed(). May throw std::bad_alloc.
  void moveExposed(int64_t by_ns);
  // Discards all that was passed to exposed().
  void forgetExposed();

  // Appends "last" and "waited_for" as members of a JSON object.
  void appendJson(std::string& out) const;

 private:
  struct Last {
    uint64_t count = 0;
    uint64_t wait_ns = 0;
  };
  void doubleBlocks();

  std::map<uint32_t, Last> last_;
  uint64_t block_ns_ = kFirstBlockNs;
  // Keyed by block (time divided by block_ns_) and rank.
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> waited_ns_;
};

} // namespace commprof
