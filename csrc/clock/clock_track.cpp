#include "clock/clock_track.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace commprof {

int64_t ClockLine::offsetAt(uint64_t own_ns) const noexcept {
  return offset_ns + std::llround(rate * double(int64_t(own_ns - at_ns)));
}

uint64_t ClockLine::errorAt(uint64_t own_ns) const noexcept {
  const double distance_ns = std::abs(double(int64_t(own_ns - at_ns)));
  return error_ns + uint64_t(std::ceil(rate_error * distance_ns));
}

void ClockTrack::setSame() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  same_ = true;
  count_ = 0;
}

void ClockTrack::add(const ClockSample& sample) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  same_ = false; // a new process group may have another rank 0
  if (count_ > 0) {
    const ClockLine line = lineLocked();
    const uint64_t error_ns = line.errorAt(sample.at_ns);
    const auto apart_ns =
        int64_t(uint64_t(sample.offset_ns) - line.offsetAt(sample.at_ns));
    if (std::abs(double(apart_ns)) > double(error_ns + sample.error_ns)) {
      // The drift has changed, a machine was suspended, or another process has
      // become rank 0.
      count_ = 0;
    } else if (sample.error_ns > error_ns) {
      return;
    }
  }
  kept_[count_++ % kKept] = sample;
}

std::optional<ClockLine> ClockTrack::line() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (same_) {
    return ClockLine{};
  }
  if (count_ == 0) {
    return std::nullopt;
  }
  return lineLocked();
}

ClockLine ClockTrack::lineLocked() const noexcept {
  const ClockSample& last = kept_[(count_ - 1) % kKept];
  const ClockSample& first = kept_[count_ < kKept ? 0 : count_ % kKept];
  ClockLine line{last.at_ns, last.offset_ns, last.error_ns, 0, kMostDrift};
  if (last.at_ns > first.at_ns) {
    const double span_ns = double(last.at_ns - first.at_ns);
    const double rate_error = double(first.error_ns + last.error_ns) / span_ns;
    if (rate_error < kMostDrift) {
      line.rate = double(int64_t(
                      uint64_t(last.offset_ns) - uint64_t(first.offset_ns))) /
          span_ns;
      line.rate_error = rate_error + kUnseenWander;
    }
  }
  return line;
}

} // namespace commprof
