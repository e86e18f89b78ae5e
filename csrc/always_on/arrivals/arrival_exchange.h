// Finds which rank came last to each collective of this rank. The ranks of this
// host write their arrivals to a common board.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>

#include "always_on/arrivals/arrival_board.h"

namespace commprof {

// A process group of this process.
struct GroupMembership {
  uint32_t id = 0; // id in this process's records
  std::string name; // the same on all ranks
  uint32_t rank = 0;
  uint32_t size = 0;
  bool is_gloo = false;
};

// An operation that this rank has issued. A message counts as a collective of a
// group of two: the sender and the receiver.
struct IssuedOp {
  uint32_t group = 0;
  uint32_t seq = 0;
  Op op = Op::kAllReduce;
  // Group rank of the root. For a message: group rank of the other rank.
  uint32_t peer = 0;

  bool isNumbered() const noexcept {
    return op != Op::kRecvAnySource && (!isPointToPoint(op) || seq != kNoSeq);
  }
};

// Not thread-safe.
class ArrivalExchange {
 public:
  // Add groups in the order in which this process first used them. Groups of
  // the same name are numbered in this order, as in
  // commprof/analysis/align/matching.py.
  void addGroup(const GroupMembership& group);
  // A null board ends the exchange. A group joins the board when it is next
  // used.
  void setBoard(std::shared_ptr<ArrivalBoard> board, uint32_t global_rank);

  // post() and last() need operations with isNumbered(). Both may throw
  // std::bad_alloc.
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
    // Name of the group, and its number among the groups of that name.
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
