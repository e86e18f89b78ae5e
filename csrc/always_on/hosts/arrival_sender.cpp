#include "always_on/hosts/arrival_sender.h"

#include <algorithm>

namespace commprof {

namespace {

// Of a group that all its ranks have joined here nobody else wants to know.
bool spansHosts(const ArrivalBoard::Group& group) noexcept {
  for (uint32_t rank = 0; rank < group.size(); ++rank) {
    if (!group.isLocal(rank)) {
      return true;
    }
  }
  return false;
}

uint64_t lessAtMost(uint64_t end, uint64_t length) noexcept {
  return end - std::min(end, length);
}

} // namespace

void ArrivalSender::collect(
    const ClockLine& clock,
    uint64_t now_ns,
    ArrivalPacker& out) {
  for (uint32_t i = 0; i < ArrivalBoard::kMaxGroups; ++i) {
    const uint32_t place = (first_place_ + i) % ArrivalBoard::kMaxGroups;
    uint64_t key = 0;
    const ArrivalBoard::Group group = board_.at(place, key);
    if (!group || !spansHosts(group)) {
      continue;
    }
    for (uint32_t rank = 0; rank < group.size(); ++rank) {
      if (!group.isLocal(rank)) {
        continue;
      }
      const ArrivalBoard::Member member{
          key, rank, group.size(), group.globalRank(rank)};
      if (!tell(group, member, told_[{key, rank}], clock, now_ns, out)) {
        first_place_ = place;
        return;
      }
    }
  }
}

bool ArrivalSender::tell(
    const ArrivalBoard::Group& group,
    const ArrivalBoard::Member& member,
    Told& told,
    const ClockLine& clock,
    uint64_t now_ns,
    ArrivalPacker& out) {
  const uint64_t end = group.end(member.rank);
  if (told.settled_ns == 0 && end > 0) {
    told.settled_ns = now_ns + kSettleNs;
    told.once = told.twice = lessAtMost(end, kRewind);
  }
  uint64_t seq = std::max(told.twice, lessAtMost(end, ArrivalBoard::kSlots));
  bool room = true;
  for (; seq < end; ++seq) {
    uint64_t issue_ns = 0;
    if (!group.find(member.rank, uint32_t(seq), now_ns, issue_ns)) {
      continue;
    }
    room = out.add(
        member,
        uint32_t(seq),
        issue_ns + uint64_t(clock.offsetAt(issue_ns)),
        clock.errorAt(issue_ns));
    if (!room) {
      break;
    }
  }
  if (now_ns >= told.settled_ns) {
    told.twice = std::min(told.once, seq);
  }
  told.once = std::max(told.once, seq);
  return room;
}

void ArrivalSender::startAgain(uint64_t now_ns) noexcept {
  for (auto& [who, told] : told_) {
    told.twice = std::min(told.twice, lessAtMost(told.once, kRewind));
    told.settled_ns = told.settled_ns == 0 ? 0 : now_ns + kSettleNs;
  }
}

} // namespace commprof
