#include "always_on/hosts/arrival_relay.h"

#include <algorithm>
#include <optional>

#include "core/record.h"

namespace commprof {

namespace {

// Returns one past the newest collective of this host's ranks, if any.
std::optional<uint32_t> localEnd(const ArrivalBoard::Group& group) noexcept {
  std::optional<uint32_t> newest;
  for (uint32_t rank = 0; rank < group.size(); ++rank) {
    const uint64_t end = group.isLocal(rank) ? group.end(rank) : 0;
    if (end != 0 && (!newest || comesBefore(*newest, uint32_t(end)))) {
      newest = uint32_t(end);
    }
  }
  return newest;
}

// True if two numbers of a group are at most `distance` collectives apart.
bool isNear(uint32_t one, uint32_t other, uint32_t distance) noexcept {
  return std::min(one - other, other - one) <= distance;
}

uint64_t ownTime(uint64_t common_ns, const ClockLine& clock) noexcept {
  const uint64_t nearly_ns = common_ns - uint64_t(clock.offset_ns);
  return common_ns - uint64_t(clock.offsetAt(nearly_ns));
}

} // namespace

uint32_t ArrivalReceiver::take(
    const ArrivalMessage& message,
    const ClockLine& clock,
    uint64_t now_ns) noexcept {
  uint32_t taken = 0;
  for (const ArrivalRun& run : message.runs) {
    taken += take(run, message.error_ns, clock, now_ns);
  }
  return taken;
}

bool ArrivalReceiver::take(
    const ArrivalRun& run,
    uint64_t error_ns,
    const ClockLine& clock,
    uint64_t now_ns) noexcept {
  ArrivalBoard::Group group = board_.find(run.member.key);
  if (!group || group.size() != run.member.size) {
    return false;
  }
  // A number far from this host's would overwrite cells still needed.
  const std::optional<uint32_t> end = localEnd(group);
  const uint32_t run_end = run.first_seq + uint32_t(run.common_ns.size());
  if (!end || !isNear(run_end, *end, ArrivalBoard::kSlots)) {
    return false;
  }
  uint64_t clock_error_ns = 0;
  for (const uint64_t common_ns : run.common_ns) {
    const uint64_t own_ns = ownTime(common_ns, clock);
    if (int64_t(own_ns - now_ns) > int64_t(kFutureNs) ||
        int64_t(own_ns - now_ns) < -int64_t(kPastNs)) {
      return false;
    }
    clock_error_ns = std::max(clock_error_ns, clock.errorAt(own_ns));
  }
  if (!group.beginPostingFor(run.member, error_ns + clock_error_ns)) {
    return false;
  }
  uint32_t seq = run.first_seq;
  for (const uint64_t common_ns : run.common_ns) {
    group.post(seq++, ownTime(common_ns, clock));
  }
  return true;
}

namespace {

// False if all ranks of a group have joined here: no other host needs it.
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
      if (!packMember(
              group, member, sent_ends_[{key, rank}], clock, now_ns, out)) {
        first_place_ = place;
        return;
      }
    }
  }
}

bool ArrivalSender::packMember(
    const ArrivalBoard::Group& group,
    const ArrivalBoard::Member& member,
    SentEnds& sent,
    const ClockLine& clock,
    uint64_t now_ns,
    ArrivalPacker& out) {
  const uint64_t end = group.end(member.rank);
  if (sent.settled_ns == 0 && end > 0) {
    sent.settled_ns = now_ns + kSettleNs;
    sent.once = sent.twice = lessAtMost(end, kRewind);
  }
  uint64_t seq = std::max(sent.twice, lessAtMost(end, ArrivalBoard::kSlots));
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
  if (now_ns >= sent.settled_ns) {
    sent.twice = std::min(sent.once, seq);
  }
  sent.once = std::max(sent.once, seq);
  return room;
}

void ArrivalSender::resendLatest(uint64_t now_ns) noexcept {
  for (auto& [key_and_rank, sent] : sent_ends_) {
    sent.twice = std::min(sent.twice, lessAtMost(sent.once, kRewind));
    sent.settled_ns = sent.settled_ns == 0 ? 0 : now_ns + kSettleNs;
  }
}

} // namespace commprof
