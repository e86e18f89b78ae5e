// Estimates the time and the waiting of a rank in operations whose records this
// rank has lost, from the records of the other ranks.
//
// First case: a rank that recorded the operation did not wait, so that rank
// came last. All other ranks waited alike. A line is fitted to the rank's
// recorded times as a function of the median of the other ranks' times. The
// line gives the rank's lost times.
//
// Second case: all ranks that recorded the operation waited. So a rank without
// a record came last and did not wait. If several ranks have no record, the
// probability that a rank came last is its share of the waiting that these
// ranks caused in other operations.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace commprof::inspector {

class LostRecords {
 public:
  // `causedUs`: the waiting that each member caused. `ranks`: number of ranks,
  // with or without a log.
  LostRecords(std::vector<double> causedUs, uint64_t ranks, uint32_t blocks);

  // Takes the recorded times of one operation: `members[i]` has `times[i]`. The
  // members in `lost` have lost their records. `usualUs` is the usual transfer.
  // If the shortest time is above `waitedAboveUs`, all ranks that recorded the
  // operation waited.
  void add(
      std::span<const uint32_t> members,
      std::span<const float> times,
      std::span<const uint32_t> lost,
      double usualUs,
      double waitedAboveUs,
      uint32_t block);

  // Returns the number of operations whose record the member has lost.
  uint64_t lost(size_t member) const;
  uint64_t lostIn(size_t member, uint32_t block) const;
  // Returns the estimated time of a member's lost records, in µs.
  double timeUs(size_t member) const;
  // Returns the estimated waiting in a member's lost records in one part of the
  // run, in µs.
  double waitUs(size_t member, uint32_t block) const;

 private:
  // Sums over the operations that a member recorded. x: median of the other
  // members' times. y: the member's time. The usual transfer is subtracted from
  // both x and y.
  struct Recorded {
    double count = 0, x = 0, y = 0, xx = 0, xy = 0;
  };
  // Sums over the operations whose record a member has lost.
  struct Lost {
    double usualUs = 0;
    // Waiting in operations in which a rank without a record came last.
    double waitUs = 0;
    // Sum over operations in which a rank with a record came last: median of
    // the recorded times minus the usual transfer.
    double x = 0;
    uint64_t followed = 0; // number of operations in `x`
    uint64_t count = 0;
  };

  double waitUs(const Lost& lost, size_t member) const;

  const size_t members_;
  const uint64_t ranks_;
  const std::vector<double> causedUs_;
  std::vector<Recorded> recorded_; // [member]
  std::vector<Lost> lost_; // [block, member]
  std::vector<std::pair<float, uint32_t>> sorted_;
};

} // namespace commprof::inspector
