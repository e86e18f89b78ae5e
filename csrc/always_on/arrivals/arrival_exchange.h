// This rank's part in telling who came last to each collective: its groups, and
// the board on which the ranks of this host write down their arrivals.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "always_on/arrivals/arrival_board.h"

namespace commprof {

// What its own process knows of a process group.
struct GroupMembership {
  uint32_t id = 0; // in the records of this process
  std::string name; // the same on all ranks
  uint32_t rank = 0;
  uint32_t size = 0;
};

// Not thread-safe.
class ArrivalExchange {
 public:
  // In the order in which this process first used them: a name that is used
  // again is told apart by its turn, as commprof/analysis/align/matching.py
  // does.
  void addGroup(const GroupMembership& group);
  // Null: nobody to exchange with. Groups join as they are used.
  void setBoard(std::shared_ptr<ArrivalBoard> board, uint32_t global_rank);

  void post(uint32_t group, uint32_t seq, uint64_t issue_ns) noexcept;
  // As ArrivalBoard::Group::last(). In a group of one, this rank is the last.
  ArrivalBoard::State last(
      uint32_t group,
      uint32_t seq,
      uint64_t issue_ns,
      ArrivalBoard::Last& found) noexcept;
  // A time of this process by rank 0's clock, as far as that is known: good
  // enough to tell blocks of time from each other.
  uint64_t commonNs(uint64_t own_ns) const noexcept;
  HostLinks links() const noexcept;

 private:
  struct Membership {
    ArrivalBoard::Member member;
    ArrivalBoard::Group joined{};
    bool refused = false;
  };
  Membership* joined(uint32_t group) noexcept;

  std::shared_ptr<ArrivalBoard> board_;
  uint32_t global_rank_ = 0;
  std::unordered_map<uint32_t, Membership> groups_;
  std::map<std::string, uint32_t> turns_;
};

} // namespace commprof
