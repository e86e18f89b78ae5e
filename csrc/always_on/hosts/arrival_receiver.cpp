#include "always_on/hosts/arrival_receiver.h"

#include <algorithm>
#include <optional>

#include "core/record.h"

namespace commprof {

namespace {

// One past the newest collective of this host's ranks; nothing: none yet.
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

// Whether two numbers of a group are at most so many collectives apart.
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
  // A number far from ours would write over what is still wanted.
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
  if (!group.standFor(run.member, error_ns + clock_error_ns)) {
    return false;
  }
  uint32_t seq = run.first_seq;
  for (const uint64_t common_ns : run.common_ns) {
    group.post(seq++, ownTime(common_ns, clock));
  }
  return true;
}

} // namespace commprof
