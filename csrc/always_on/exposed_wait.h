// Which part of exposed time was waiting for the last rank, for one stretch of
// it. The figures are those of commprof/analysis/step/waiting.py and
// exposure.py.
#pragma once

#include <cstdint>
#include <vector>

namespace commprof {

// A stretch in which the training thread waited.
struct Exposure {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t waited_ns = 0; // not more than its length but for clock noise
  uint64_t op_id = 0; // waited for in Work.wait; 0 for a finalisation
  uint64_t graph_task = 0; // of the finalisation
};

// One bucket of a backward pass as its rank saw it, in order of issue.
struct BucketTimes {
  double size_bytes = 0;
  uint64_t end_ns = 0;
  uint64_t last_arrival_ns = 0;
  uint32_t last_rank = 0;
};

// The part of a wait for one collective that lies before its last arrival.
uint64_t waitedBefore(const Exposure& exposure, uint64_t arrival_ns) noexcept;

// The bucket whose last arrival ended the waiting: the last one that did not
// arrive while an earlier one was still on the wire. `buckets` is not empty.
const BucketTimes& decidingBucket(
    const std::vector<BucketTimes>& buckets) noexcept;

// The part of a finalisation's waiting that lies before `arrival_ns`. What was
// waited is shared out over the buckets by replaying DDP's loop, as exposure.py
// does. May throw std::bad_alloc.
uint64_t waitedBefore(
    const Exposure& finalisation,
    const std::vector<BucketTimes>& buckets,
    uint64_t arrival_ns);

} // namespace commprof
