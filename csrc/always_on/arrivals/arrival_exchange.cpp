#include "always_on/arrivals/arrival_exchange.h"

#include <utility>

#include "base/fnv1a.h"

namespace commprof {

namespace {

// Never 0. With kMaxGroups groups, the chance that any two have the same hash
// is below one in 10^13.
uint64_t hashOf(const std::string& text) noexcept {
  Fnv1a hash;
  hash.add(text);
  return hash.value() == 0 ? 1 : hash.value();
}

ArrivalBoard::Kind kindOf(
    const IssuedOp& issued,
    const ArrivalBoard::Member& member) noexcept {
  if (!mayBeDoneEarly(issued.op) || member.size <= 2) {
    return ArrivalBoard::Kind::kAll;
  }
  return issued.peer == member.rank ? ArrivalBoard::Kind::kRoot
                                    : ArrivalBoard::Kind::kSingle;
}

} // namespace

void ArrivalExchange::addGroup(const GroupMembership& group) {
  const uint32_t turn = turns_[group.name]++;
  Membership made;
  made.name = group.name + '\n' + std::to_string(turn);
  made.is_gloo = group.is_gloo;
  made.member = {hashOf(made.name), group.rank, group.size, global_rank_};
  groups_[group.id] = made;
}

void ArrivalExchange::setBoard(
    std::shared_ptr<ArrivalBoard> board,
    uint32_t global_rank) {
  board_ = std::move(board);
  global_rank_ = global_rank;
  messages_.clear();
  for (auto& [id, group] : groups_) {
    group.member.global_rank = global_rank;
    group.joined = {};
    group.refused = false;
  }
}

ArrivalExchange::Membership* ArrivalExchange::membership(
    const IssuedOp& issued) {
  const auto found = groups_.find(issued.group);
  if (found == groups_.end()) {
    return nullptr;
  }
  const Membership& group = found->second;
  if (!isPointToPoint(issued.op)) {
    return &found->second;
  }
  const bool sends = issued.op == Op::kSend;
  const auto [place, is_new] =
      messages_.try_emplace({issued.group, issued.peer, sends});
  Membership& pair = place->second;
  if (is_new) {
    const uint32_t own = group.member.rank;
    pair.name = group.name + '\n' + std::to_string(sends ? own : issued.peer) +
        " to " + std::to_string(sends ? issued.peer : own);
    pair.member = {
        hashOf(pair.name), sends ? 0u : 1u, 2, group.member.global_rank};
    pair.is_gloo = group.is_gloo;
  }
  return &pair;
}

// Joins the board if possible. Returns null for a group that was not added.
ArrivalExchange::Membership* ArrivalExchange::joined(const IssuedOp& issued) {
  Membership* own = membership(issued);
  if (own != nullptr && !own->joined && board_ && !own->refused &&
      own->member.size > 1) {
    own->refused = !board_->join(own->member, own->joined);
  }
  return own;
}

void ArrivalExchange::post(const IssuedOp& issued, uint64_t issue_ns) {
  Membership* own = joined(issued);
  if (own != nullptr && own->joined) {
    own->joined.post(issued.seq, issue_ns, kindOf(issued, own->member));
  }
}

ArrivalBoard::State ArrivalExchange::last(
    const IssuedOp& issued,
    uint64_t issue_ns,
    uint64_t done_ns,
    ArrivalBoard::Last& found) {
  Membership* own = joined(issued);
  if (own == nullptr) {
    return ArrivalBoard::State::kLost;
  }
  if (own->member.size == 1) {
    found = {issue_ns, global_rank_};
    return ArrivalBoard::State::kKnown;
  }
  if (!own->joined) {
    return own->refused ? ArrivalBoard::State::kNoPlace
        : board_        ? ArrivalBoard::State::kMissing
                        : ArrivalBoard::State::kLost;
  }
  const Meaning meaning{issued.op, issued.peer, own->is_gloo};
  return own->joined.last(issued.seq, issue_ns, found, {meaning, done_ns});
}

HostLinks ArrivalExchange::links() const noexcept {
  return board_ ? board_->links() : HostLinks{};
}

} // namespace commprof
