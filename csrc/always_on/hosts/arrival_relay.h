// Exchange of arrivals between hosts: selects what has not been sent yet, and
// writes what another host sent to this host's board.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "always_on/arrivals/arrival_board.h"
#include "always_on/hosts/arrival_message.h"
#include "clock/clock_track.h"

namespace commprof {

// Not thread-safe; must not outlive the board.
class ArrivalReceiver {
 public:
  // Arrivals farther in the past, or in the future, are rejected.
  static constexpr uint64_t kPastNs = 60'000'000'000;
  static constexpr uint64_t kFutureNs = 1'000'000'000;

  explicit ArrivalReceiver(ArrivalBoard& board) : board_(board) {}

  // Takes the runs of groups that this host's ranks have joined, if their
  // numbers and times are near this host's. Returns the number of runs taken.
  uint32_t take(
      const ArrivalMessage& message,
      const ClockLine& clock,
      uint64_t now_ns) noexcept;

 private:
  bool take(
      const ArrivalRun& run,
      uint64_t error_ns,
      const ClockLine& clock,
      uint64_t now_ns) noexcept;

  ArrivalBoard& board_;
};

// Sends everything twice, in two successive calls, so that a single lost
// datagram loses nothing; for a second after a rank was first seen, in every
// call, since the other hosts may not have joined its group yet. Keeps only
// positions: the arrivals are on the board. Not thread-safe; must not outlive
// the board.
class ArrivalSender {
 public:
  static constexpr uint64_t kSettleNs = 1'000'000'000;
  // Earlier collectives that are sent of a new rank, or to a new host.
  static constexpr uint64_t kRewind = 1024;

  explicit ArrivalSender(ArrivalBoard& board) : board_(board) {}

  // Packs what is new, and what was new in the last call; what does not fit
  // comes first in the next call. May throw std::bad_alloc.
  void collect(const ClockLine& clock, uint64_t now_ns, ArrivalPacker& out);
  // Sends the latest kRewind collectives again, for another host.
  void resendLatest(uint64_t now_ns) noexcept;

 private:
  // Ends of the ranges of one rank's collectives, from 0, that were sent.
  struct SentEnds {
    uint64_t once = 0;
    uint64_t twice = 0;
    uint64_t settled_ns = 0; // until then `twice` stays; 0: not seen yet
  };
  bool packMember(
      const ArrivalBoard::Group& group,
      const ArrivalBoard::Member& member,
      SentEnds& sent,
      const ClockLine& clock,
      uint64_t now_ns,
      ArrivalPacker& out);

  ArrivalBoard& board_;
  // By key and rank.
  std::map<std::pair<uint64_t, uint32_t>, SentEnds> sent_ends_;
  uint32_t first_place_ = 0; // comes first in the next call
};

} // namespace commprof
