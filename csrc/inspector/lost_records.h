// What the operations of which a rank's record is lost took this rank, from the
// records that the other ranks have of the same operations.
//
// If one of those that recorded an operation did not wait, it came last. The
// time of the rank then mostly follows the median of the others' times, as all
// wait alike for a late rank; less so if it is a root. So a line is fitted to
// the times that it recorded over those medians, and tells the lost ones.
//
// If all that recorded an operation waited, a rank without a record came last,
// and did not wait. Of several, each is as likely the last as its part in the
// waiting that they caused in all operations that they recorded.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace commprof::inspector {

class LostRecords {
 public:
  // `causedUs`: waiting for each member with a log, of `ranks` ranks.
  LostRecords(std::vector<double> causedUs, uint64_t ranks, uint32_t blocks);

  // Takes the recorded times of one operation; `members[i]` has `times[i]`, and
  // the records of `lost` are lost. `usualUs` is the usual transfer; all that
  // recorded it waited if their shortest time is above `waitedAboveUs`.
  void add(
      std::span<const uint32_t> members,
      std::span<const float> times,
      std::span<const uint32_t> lost,
      double usualUs,
      double waitedAboveUs,
      uint32_t block);

  // Records of a member that `add` took as lost.
  uint64_t lost(size_t member) const;
  uint64_t lostIn(size_t member, uint32_t block) const;
  // Their times together, in µs.
  double timeUs(size_t member) const;
  // The waiting in them, in a part of the run.
  double waitUs(size_t member, uint32_t block) const;

 private:
  // Sums over operations that a member recorded: x is the median of the others
  // beyond the usual transfer, y the member's time beyond it.
  struct Recorded {
    double count = 0, x = 0, y = 0, xx = 0, xy = 0;
  };
  // Sums over those of which its record is lost.
  struct Lost {
    double usualUs = 0;
    double waitUs = 0; // where the last is among those without a record
    double x = 0; // elsewhere
    uint64_t followed = 0; // in `x`
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
