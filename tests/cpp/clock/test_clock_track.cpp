#include "clock/clock_track.h"

#include <cmath>

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kBegin = 100 * kSecond;

ClockSample sample(uint64_t at_s, int64_t offset_ns, uint64_t error_ns = 100) {
  return {kBegin + at_s * kSecond, offset_ns, error_ns, 2 * error_ns};
}

void nothingIsKnownBeforeTheFirstComparison() {
  ClockTrack track;
  CHECK(!track.line());
  track.setSame();
  CHECK_EQ(track.line()->offsetAt(kBegin), 0);
  CHECK_EQ(track.line()->errorAt(kBegin), 0u);
  track.add(sample(0, 5));
  CHECK_EQ(track.line()->offsetAt(kBegin), 5);
}

// The kernel corrects a clock by at most 500 ppm.
void oneComparisonGivesNoDrift() {
  ClockTrack track;
  track.add(sample(0, -3'000'000));
  const ClockLine line = *track.line();
  CHECK_EQ(line.offsetAt(kBegin + kSecond), -3'000'000);
  CHECK_EQ(line.errorAt(kBegin), 100u);
  CHECK_EQ(line.errorAt(kBegin + kSecond), 500'100u);
  CHECK_EQ(line.errorAt(kBegin - kSecond), 500'100u);
  // These two comparisons are so close together that their errors allow a drift
  // of more than 500 ppm.
  track.add({kBegin + 1'000, -3'000'000, 100, 200});
  CHECK_EQ(track.line()->rate_error, ClockTrack::kMostDrift);
}

// The drift is known within (100 + 100) ns in 10 s. The drift may have changed
// by 1 ppm since the last comparison.
void twoComparisonsGiveTheDrift() {
  ClockTrack track;
  track.add(sample(0, 0));
  track.add(sample(10, 1'000));
  const ClockLine line = *track.line();
  CHECK_EQ(line.offsetAt(kBegin + 10 * kSecond), 1'000);
  CHECK_EQ(line.offsetAt(kBegin + 20 * kSecond), 2'000);
  CHECK_EQ(line.offsetAt(kBegin + 5 * kSecond), 500);
  const uint64_t error_ns = line.errorAt(kBegin + 20 * kSecond);
  CHECK(error_ns >= 100 + 200 + 10'000 && error_ns <= 100 + 200 + 10'001);
}

void anInaccurateComparisonIsIgnored() {
  ClockTrack track;
  track.add(sample(0, 0));
  track.add(sample(10, 1'000));
  track.add(sample(20, 30'000, 50'000));
  CHECK_EQ(track.line()->at_ns, kBegin + 10 * kSecond);
  track.add(sample(20, 2'000));
  CHECK_EQ(track.line()->at_ns, kBegin + 20 * kSecond);
}

void aContradictingComparisonStartsANewLine() {
  ClockTrack track;
  track.add(sample(0, 0));
  track.add(sample(10, 1'000));
  track.add(sample(20, 50'000));
  const ClockLine line = *track.line();
  CHECK_EQ(line.offsetAt(kBegin + 21 * kSecond), 50'000);
  CHECK_EQ(line.rate_error, ClockTrack::kMostDrift);
}

// The last kKept comparisons span 7 s, so the drift of the first 10 s is
// forgotten.
void theOldestComparisonsAreDropped() {
  ClockTrack track;
  for (uint64_t s = 0; s <= 30; ++s) {
    track.add(sample(s, s < 10 ? 0 : int64_t(s - 10) * 100));
  }
  CHECK(std::abs(track.line()->rate - 100e-9) < 1e-15);
  CHECK_EQ(track.line()->offsetAt(kBegin + 40 * kSecond), 3'000);
}

void largeOffsetsAreExact() {
  ClockTrack track;
  const int64_t offset_ns = -(int64_t(1) << 62);
  track.add({uint64_t(1) << 63, offset_ns, 10, 20});
  const uint64_t own_ns = (uint64_t(1) << 63) + 1'000;
  CHECK_EQ(
      own_ns + uint64_t(track.line()->offsetAt(own_ns)),
      (uint64_t(1) << 62) + 1'000);
}

} // namespace

int main() {
  nothingIsKnownBeforeTheFirstComparison();
  oneComparisonGivesNoDrift();
  twoComparisonsGiveTheDrift();
  anInaccurateComparisonIsIgnored();
  aContradictingComparisonStartsANewLine();
  theOldestComparisonsAreDropped();
  largeOffsetsAreExact();
  return check::report();
}
