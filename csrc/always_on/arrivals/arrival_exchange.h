// This rank's part in finding which rank came last to each collective. It knows
// this rank's groups, and the board to which the ranks of this host write their
// arrivals.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>

#include "always_on/arrivals/arrival_board.h"

namespace commprof {

// A process group, as one process knows it.
struct GroupMembership {
  uint32_t id = 0; // id in this process's records
  std::string name; // name, the same on all ranks
  uint32_t rank = 0;
  uint32_t size = 0;
  bool is_gloo = false; // the group's backend is gloo
};

// An operation as one rank issued it. A message counts as a collective of a
// group of two, its sender and its receiver, and has a sequence number in this
// group.
struct IssuedOp {
  uint32_t group = 0;
  uint32_t seq = 0;
  Op op = Op::kAllReduce;
  // Group rank of the root, or of the other rank of a message.
  uint32_t peer = 0;

  bool isNumbered() const noexcept {
    return op != Op::kRecvAnySource && (!isPointToPoint(op) || seq != kNoSeq);
  }
};

// Not thread-safe.
class ArrivalExchange {
 public:
  // Call it in the order in which this process first used the groups: groups of
  // the same name are numbered in this order, as in
  // commprof/analysis/align/matching.py.
  void addGroup(const GroupMembership& group);
  // A null board ends the exchange. A group joins the board when it is next
  // used.
  void setBoard(std::shared_ptr<ArrivalBoard> board, uint32_t global_rank);

  // post() and last() need isNumbered(), and may throw std::bad_alloc.
  void post(const IssuedOp& issued, uint64_t issue_ns);
  // Like ArrivalBoard::Group::last(), for a rank that was done at `done_ns`. In
  // a group of one, this rank is the last.
  ArrivalBoard::State last(
      const IssuedOp& issued,
      uint64_t issue_ns,
      uint64_t done_ns,
      ArrivalBoard::Last& found);
  HostLinks links() const noexcept;

 private:
  struct Membership {
    ArrivalBoard::Member member;
    bool is_gloo = false;
    // Name of the group, and its number among groups of that name; the same on
    // all ranks.
    std::string name;
    ArrivalBoard::Group joined{};
    bool refused = false;
  };
  Membership* joined(const IssuedOp& issued);
  Membership* membership(const IssuedOp& issued);

  std::shared_ptr<ArrivalBoard> board_;
  uint32_t global_rank_ = 0;
  std::unordered_map<uint32_t, Membership> groups_;
  // Keyed by the group, the other rank of a message, and whether this rank
  // sends.
  std::map<std::tuple<uint32_t, uint32_t, bool>, Membership> messages_;
  std::map<std::string, uint32_t> turns_;
};

} // namespace commprof
