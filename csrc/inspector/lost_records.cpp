#include "inspector/lost_records.h"

#include <algorithm>
#include <numeric>

namespace commprof::inspector {

namespace {

// If there are fewer records than this, the line is not fitted and has slope 1.
constexpr double kFewestOfLine = 8;

} // namespace

LostRecords::LostRecords(
    std::vector<double> causedUs,
    uint64_t ranks,
    uint32_t blocks)
    : members_(causedUs.size()),
      ranks_(ranks),
      causedUs_(std::move(causedUs)),
      recorded_(members_),
      lost_(members_ * blocks) {}

void LostRecords::add(
    std::span<const uint32_t> members,
    std::span<const float> times,
    std::span<const uint32_t> lost,
    double usualUs,
    double waitedAboveUs,
    uint32_t block) {
  sorted_.clear();
  for (size_t i = 0; i < times.size(); ++i) {
    sorted_.emplace_back(times[i], members[i]);
  }
  std::sort(sorted_.begin(), sorted_.end());
  const size_t count = sorted_.size();
  // Returns the median of `number` sorted times, without the time at index
  // `leftOut`.
  const auto median = [&](size_t number, size_t leftOut) {
    const auto time = [&](size_t i) {
      return double(sorted_[i + size_t(i >= leftOut)].first);
    };
    return (time((number - 1) / 2) + time(number / 2)) / 2;
  };
  for (size_t i = 0; count > 1 && i < count; ++i) {
    if (sorted_[i == 0].first > waitedAboveUs) {
      continue; // this rank, or a rank without a record, came last
    }
    Recorded& of = recorded_[sorted_[i].second];
    const double x = median(count - 1, i) - usualUs;
    const double y = double(sorted_[i].first) - usualUs;
    ++of.count;
    of.x += x;
    of.y += y;
    of.xx += x * x;
    of.xy += x * y;
  }
  const bool allWaited = sorted_[0].first > waitedAboveUs;
  const double x = median(count, count) - usualUs;
  double causedUs = 0;
  for (uint32_t member : lost) {
    causedUs += causedUs_[member];
  }
  // A rank without a log is assumed to cause as much waiting as the average
  // rank with a log.
  const double unknown = double(ranks_ - count - lost.size());
  causedUs += unknown / double(members_) *
      std::accumulate(causedUs_.begin(), causedUs_.end(), 0.0);
  for (uint32_t member : lost) {
    Lost& of = lost_[block * members_ + member];
    ++of.count;
    of.usualUs += usualUs;
    if (allWaited) {
      const double isLast = causedUs > 0 ? causedUs_[member] / causedUs
                                         : 1 / (unknown + double(lost.size()));
      of.waitUs += (1 - isLast) * x;
    } else {
      of.x += x;
      ++of.followed;
    }
  }
}

double LostRecords::waitUs(const Lost& lost, size_t member) const {
  const Recorded& of = recorded_[member];
  if (lost.followed == 0 || of.count == 0) {
    return lost.waitUs + lost.x;
  }
  const double spread = of.xx - of.x * of.x / of.count;
  const bool hasSlope = of.count >= kFewestOfLine && spread > 1e-9 * of.xx;
  // The slope is 0 for a rank that never waits, and 1 for a rank that waits
  // like the other ranks.
  const double slope = hasSlope
      ? std::clamp((of.xy - of.x * of.y / of.count) / spread, 0.0, 1.0)
      : 1;
  const double count = double(lost.followed);
  const double meanX = of.x / of.count;
  const double meanY = of.y / of.count;
  return lost.waitUs + count * meanY + slope * (lost.x - count * meanX);
}

uint64_t LostRecords::lostIn(size_t member, uint32_t block) const {
  return lost_[block * members_ + member].count;
}

uint64_t LostRecords::lost(size_t member) const {
  uint64_t count = 0;
  for (size_t i = member; i < lost_.size(); i += members_) {
    count += lost_[i].count;
  }
  return count;
}

double LostRecords::timeUs(size_t member) const {
  Lost all;
  for (size_t i = member; i < lost_.size(); i += members_) {
    all.usualUs += lost_[i].usualUs;
    all.waitUs += lost_[i].waitUs;
    all.x += lost_[i].x;
    all.followed += lost_[i].followed;
  }
  return std::max(0.0, all.usualUs + waitUs(all, member));
}

double LostRecords::waitUs(size_t member, uint32_t block) const {
  return std::max(0.0, waitUs(lost_[block * members_ + member], member));
}

} // namespace commprof::inspector
