#pragma once

#include <memory>
#include <vector>

#include "always_on/arrivals/arrival_board.h"
#include "base/clock.h"
#include "clock/clock_track.h"

namespace arrival_hosts {

constexpr uint64_t kGroup = 77;
constexpr uint32_t kRanks = 4;

// A simulated host that has two of the group's ranks. `true_ns` is a time of
// this process's clock, and the host's own clock shows `ownNs(true_ns)`.
struct Host {
  int64_t ahead_ns;
  uint32_t first_rank;
  std::shared_ptr<commprof::ArrivalBoard> board =
      commprof::ArrivalBoard::create(1);
  commprof::ClockTrack clock;
  std::vector<commprof::ArrivalBoard::Group> ranks{};

  Host(int64_t ahead, uint32_t first) : ahead_ns(ahead), first_rank(first) {}

  void compare() {
    if (ahead_ns == 0) {
      clock.setSame();
    } else {
      clock.add({ownNs(commprof::nowNs()), -ahead_ns, 100, 200});
    }
  }
  void join() {
    for (uint32_t rank = first_rank; rank < first_rank + 2; ++rank) {
      board->join({kGroup, rank, kRanks, 100 + rank}, ranks.emplace_back());
    }
  }
  uint64_t ownNs(uint64_t true_ns) const {
    return true_ns + uint64_t(ahead_ns);
  }
  void post(uint32_t rank, uint32_t seq, uint64_t true_ns) {
    ranks[rank - first_rank].post(seq, ownNs(true_ns));
  }
  commprof::ArrivalBoard::State last(
      uint32_t seq,
      uint64_t true_ns,
      commprof::ArrivalBoard::Last& found) const {
    return ranks[0].last(seq, ownNs(true_ns), found);
  }
};

} // namespace arrival_hosts
