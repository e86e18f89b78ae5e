// Estimates a rank's time and waiting in operations for which this rank's
// record is lost, from the records of the other ranks.
//
// First case: one of the ranks that recorded an operation did not wait in it,
// so that rank came last. All other ranks waited alike for it. So the time of a
// rank mostly follows the median of the other ranks' times, though less so if
// the rank is the root of the operation. A line is fitted to the rank's
// recorded times as a function of these medians; the line gives the rank's lost
// times.
//
// Second case: all ranks that recorded an operation waited in it, so a rank
// without a record came last, and did not wait. If several ranks have no
// record, the chance of each to be the last is its share of the waiting that
// these ranks caused in other operations.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace commprof::inspector {

class LostRecords {
 public:
  // `causedUs`: waiting that each member with a log caused. `ranks`: number of
  // ranks, with or without a log.
  LostRecords(std::vector<double> causedUs, uint64_t ranks, uint32_t blocks);

  // Takes the recorded times of one operation; `members[i]` has `times[i]`, and
  // the records of the members in `lost` are lost. `usualUs` is the usual
  // transfer; if the shortest time is above `waitedAboveUs`, all ranks that
  // recorded the operation waited.
  void add(
      std::span<const uint32_t> members,
      std::span<const float> times,
      std::span<const uint32_t> lost,
      double usualUs,
      double waitedAboveUs,
      uint32_t block);

  // Returns for how many operations add() was told that the member's record is
  // lost.
  uint64_t lost(size_t member) const;
  uint64_t lostIn(size_t member, uint32_t block) const;
  // Returns the estimated time of a member's lost records, in µs.
  double timeUs(size_t member) const;
  // Returns the estimated waiting in a member's lost records, in one part of
  // the run.
  double waitUs(size_t member, uint32_t block) const;

 private:
  // Sums over operations that a member recorded: x is the median of the other
  // members' times, y the member's time, both minus the usual transfer.
  struct Recorded {
    double count = 0, x = 0, y = 0, xx = 0, xy = 0;
  };
  // Sums over operations for which a member's record is lost.
  struct Lost {
    double usualUs = 0;
    // Waiting in operations in which a rank without a record came last.
    double waitUs = 0;
    // Median of the recorded times minus the usual transfer, summed over
    // operations in which a rank with a record came last.
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
