#include "always_on/arrivals/arrival_exchange.h"

#include <utility>

#include "base/fnv1a.h"

namespace commprof {

namespace {

// Never 0. Two groups of one job with the same hash would have to be among the
// first 64: one chance in 10^15.
uint64_t hashOf(const std::string& text) noexcept {
  Fnv1a hash;
  hash.add(text);
  return hash.value() == 0 ? 1 : hash.value();
}

} // namespace

void ArrivalExchange::addGroup(const GroupMembership& group) {
  const uint32_t turn = turns_[group.name]++;
  Membership made;
  made.member = {
      hashOf(group.name + '\n' + std::to_string(turn)),
      group.rank,
      group.size,
      global_rank_};
  groups_[group.id] = made;
}

void ArrivalExchange::setBoard(
    std::shared_ptr<ArrivalBoard> board,
    uint32_t global_rank) {
  board_ = std::move(board);
  global_rank_ = global_rank;
  for (auto& [id, group] : groups_) {
    group.member.global_rank = global_rank;
    group.joined = {};
    group.refused = false;
  }
}

// Null where there is nobody to exchange with.
ArrivalExchange::Membership* ArrivalExchange::joined(uint32_t group) noexcept {
  const auto found = groups_.find(group);
  if (found == groups_.end()) {
    return nullptr;
  }
  Membership& own = found->second;
  if (!own.joined && board_ && !own.refused && own.member.size > 1) {
    own.refused = !board_->join(own.member, own.joined);
  }
  return &own;
}

void ArrivalExchange::post(
    uint32_t group,
    uint32_t seq,
    uint64_t issue_ns) noexcept {
  Membership* own = joined(group);
  if (own != nullptr && own->joined) {
    own->joined.post(seq, issue_ns);
  }
}

ArrivalBoard::State ArrivalExchange::last(
    uint32_t group,
    uint32_t seq,
    uint64_t issue_ns,
    ArrivalBoard::Last& found) noexcept {
  Membership* own = joined(group);
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
  return own->joined.last(seq, issue_ns, found);
}

uint64_t ArrivalExchange::commonNs(uint64_t own_ns) const noexcept {
  return own_ns + uint64_t(links().clock_offset_ns);
}

HostLinks ArrivalExchange::links() const noexcept {
  return board_ ? board_->links() : HostLinks{};
}

} // namespace commprof
