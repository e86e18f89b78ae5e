// What one host tells another of arrivals: what it has not told yet, and what
// of the other's it writes down on its own board.
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
  // Arrivals this far in the past, or in the future, are not believed.
  static constexpr uint64_t kPastNs = 60'000'000'000;
  static constexpr uint64_t kFutureNs = 1'000'000'000;

  explicit ArrivalReceiver(ArrivalBoard& board) : board_(board) {}

  // Of runs of groups that this host's ranks have joined, and whose numbers and
  // times are near theirs. Returns how many were taken.
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

// Everything is told twice, in two calls in a row, so that a single lost
// datagram loses nothing; and for a second after a rank was first seen again
// and again, since the other hosts may not have joined its group yet. It keeps
// nothing but places: the arrivals stand on the board. Not thread-safe; must
// not outlive the board.
class ArrivalSender {
 public:
  static constexpr uint64_t kSettleNs = 1'000'000'000;
  // Of a rank, or a host, that is new: collectives of before that are told.
  static constexpr uint64_t kRewind = 1024;

  explicit ArrivalSender(ArrivalBoard& board) : board_(board) {}

  // Packs what is new, and what was new the last time; what finds no room
  // comes first the next time. May throw std::bad_alloc.
  void collect(const ClockLine& clock, uint64_t now_ns, ArrivalPacker& out);
  // Another host listens: it gets the latest kRewind collectives too.
  void startAgain(uint64_t now_ns) noexcept;

 private:
  // Collectives of one rank, as ends of ranges that begin at 0.
  struct Told {
    uint64_t once = 0;
    uint64_t twice = 0;
    uint64_t settled_ns = 0; // until then `twice` stays; 0: not seen yet
  };
  bool tell(
      const ArrivalBoard::Group& group,
      const ArrivalBoard::Member& member,
      Told& told,
      const ClockLine& clock,
      uint64_t now_ns,
      ArrivalPacker& out);

  ArrivalBoard& board_;
  std::map<std::pair<uint64_t, uint32_t>, Told> told_; // by key and rank
  uint32_t first_place_ = 0; // whose turn it is to come first
};

} // namespace commprof
