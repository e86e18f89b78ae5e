// Relates this process's clock to rank 0's while the job runs. After the run,
// commprof/analysis/align/clocks.py does this with the same comparisons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace commprof {

// A datagram, the same for question and answer; little-endian, as in a trace.
// In a question, the last two times are 0.
struct ClockMessage {
  static constexpr uint32_t kAsks = 0x3f4b4c43; // "CLK?"
  static constexpr uint32_t kAnswers = 0x214b4c43; // "CLK!"
  uint32_t magic = 0;
  uint32_t rank = 0; // the asking rank
  uint64_t token = 0; // token of this job
  uint64_t number = 0; // id of the question, to detect late answers
  uint64_t asked_ns = 0; // time by the asking rank's clock
  uint64_t received_ns = 0; // time by rank 0's clock
  uint64_t answered_ns = 0; // time by rank 0's clock
};
static_assert(sizeof(ClockMessage) == 48);

// One comparison of this process's CLOCK_MONOTONIC with rank 0's.
struct ClockSample {
  uint64_t at_ns = 0; // middle of the exchange, by this process's clock
  int64_t offset_ns = 0; // rank 0's clock minus this process's
  uint64_t error_ns = 0; // the true offset differs by at most this
  // Duration of the exchange, minus rank 0's time to answer; 0: no sample.
  uint64_t round_trip_ns = 0;
};

// Rank 0 received the question after it was asked, and sent its answer before
// the answer came here. So offset <= received - asked, and offset >= answered -
// came. The sample is the middle of these bounds (Cristian 1989; NTP's on-wire
// protocol, RFC 5905). Returns no sample if the times are out of order.
inline ClockSample sampleOf(const ClockMessage& answer, uint64_t came_ns) {
  // Clocks may differ so much that a sum of times overflows; so differences are
  // computed first.
  const int64_t most = int64_t(answer.received_ns - answer.asked_ns);
  const int64_t least = int64_t(answer.answered_ns - came_ns);
  if (came_ns < answer.asked_ns || answer.answered_ns < answer.received_ns ||
      least > most) {
    return {};
  }
  const uint64_t width = uint64_t(most) - uint64_t(least);
  ClockSample sample;
  sample.at_ns = answer.asked_ns + (came_ns - answer.asked_ns) / 2;
  sample.offset_ns = least + int64_t(width / 2);
  sample.error_ns = width / 2 + 1; // the division rounded down
  sample.round_trip_ns = width > 0 ? width : 1;
  return sample;
}

// Rank 0's clock minus this process's clock, as a straight line through
// comparisons.
struct ClockLine {
  uint64_t at_ns = 0; // time of the last comparison, by this process's clock
  int64_t offset_ns = 0; // offset at that time
  uint64_t error_ns = 0; // bound on the error of offset_ns
  double rate = 0; // ns of offset gained per ns
  double rate_error = 0; // bound on the error of rate

  int64_t offsetAt(uint64_t own_ns) const noexcept;
  // Returns a bound on the error of offsetAt().
  uint64_t errorAt(uint64_t own_ns) const noexcept;
};

// Thread-safe.
class ClockTrack {
 public:
  // Number of latest comparisons that determine the drift. In a long run they
  // span about 70 s.
  static constexpr size_t kKept = 8;
  // kMostDrift: bound on the drift before comparisons show it; the kernel
  // corrects a clock by at most 500 ppm (MAXFREQ of adjtimex(2)).
  // kUnseenWander: bound on the change of the drift between comparisons, for
  // example with a crystal's temperature.
  static constexpr double kMostDrift = 500e-6;
  static constexpr double kUnseenWander = 1e-6;

  // Declares that this clock is rank 0's, so that no comparison is needed.
  void setSame() noexcept;
  // Ignores a comparison that is less exact than the line. A comparison that
  // contradicts the line begins a new line.
  void add(const ClockSample& sample) noexcept;
  // Returns nothing before the first comparison.
  std::optional<ClockLine> line() const noexcept;

 private:
  ClockLine lineLocked() const noexcept;

  mutable std::mutex mutex_; // guards everything below
  bool same_ = false;
  std::array<ClockSample, kKept> kept_{}; // circular buffer
  size_t count_ = 0; // number of comparisons ever stored
};

} // namespace commprof
