#include "always_on/hosts/arrival_tree.h"

#include <algorithm>

#include "core/record.h"

namespace commprof {

namespace {

bool isNear(uint32_t one, uint32_t other, uint32_t distance) noexcept {
  return std::min(one - other, other - one) <= distance;
}

uint64_t ownTime(uint64_t common_ns, const ClockLine& clock) noexcept {
  const uint64_t nearly_ns = common_ns - uint64_t(clock.offset_ns);
  return common_ns - uint64_t(clock.offsetAt(nearly_ns));
}

uint32_t errorOf(uint64_t error_ns) noexcept {
  return uint32_t(std::min<uint64_t>(error_ns, UINT32_MAX));
}

} // namespace

ArrivalTree::Collective* ArrivalTree::find(const Id& id) noexcept {
  const auto place = all_.find(id);
  return place == all_.end() ? nullptr : &place->second;
}

void ArrivalTree::drop(const Id& id) {
  const auto place = all_.find(id);
  if (place != all_.end()) {
    listed_ -= place->second.listed.size();
    --number_[place->second.size > kLargeRanks];
    all_.erase(place);
  }
}

// Returns the collective, and adds it if it is new. Null if the collective is
// kept with another group size.
ArrivalTree::Collective* ArrivalTree::collective(
    const Id& id,
    uint32_t size,
    uint64_t now_ns) {
  if (Collective* one = find(id)) {
    return one->size == size ? one : nullptr;
  }
  std::deque<Id>& by_age = by_age_[size > kLargeRanks];
  size_t& number = number_[size > kLargeRanks];
  while (number >= kMaxCollectives || by_age.size() >= 4 * kMaxCollectives) {
    const Collective* oldest = find(by_age.front());
    skipped_ += oldest != nullptr && oldest->last.present == 0;
    drop(by_age.front());
    by_age.pop_front();
  }
  by_age.push_back(id);
  waiting_.push_back(id);
  ++number;
  Collective& one = all_[id];
  one.id = id;
  one.size = size;
  one.begin_ns = now_ns;
  return &one;
}

void ArrivalTree::change(Collective& one) {
  if (!one.is_changed) {
    one.is_changed = true;
    changed_.push_back(one.id);
  }
}

// Returns the last arrival and the number of arrivals, on this host and all
// hosts below it in the tree.
ArrivalTree::Part ArrivalTree::total(const Collective& one) noexcept {
  Part all;
  for (const Part& part : one.parts) {
    if (all.present == 0 ||
        isLastOf(part.last_ns, part.last_rank, all.last_ns, all.last_rank)) {
      all.last_ns = part.last_ns;
      all.last_rank = part.last_rank;
    }
    all.present += part.present;
    all.error_ns = std::max(all.error_ns, part.error_ns);
  }
  all.present = std::min(all.present, one.size);
  return all;
}

void ArrivalTree::gather(const ClockLine& clock, uint64_t now_ns) {
  for (uint32_t place = 0; place < ArrivalBoard::kMaxGroups; ++place) {
    uint64_t key = 0;
    const ArrivalBoard::Group group = board_.at(place, key);
    uint32_t end = 0;
    // Other hosts need no arrivals of a group whose ranks are all on this host.
    if (!group || group.localRanks() == group.size() || !group.newestEnd(end)) {
      continue;
    }
    const auto [entry, is_new] = progress_.try_emplace(key);
    Progress& progress = entry->second;
    if (is_new) {
      progress.next = end - std::min(end, kRewind);
    }
    if (progress.local_ranks != group.localRanks()) {
      progress.local_ranks = group.localRanks();
      reopen(key);
    }
    if (end - progress.next > group.slots()) {
      progress.next = end - group.slots();
    }
    for (; progress.next != end; ++progress.next) {
      Collective* one = collective({key, progress.next}, group.size(), now_ns);
      if (one != nullptr && !one->is_open) {
        one->is_open = true;
        open_.push_back(one->id);
      }
    }
  }
  std::erase_if(open_, [&](const Id& id) {
    Collective* one = find(id);
    return one == nullptr || !scan(*one, clock, now_ns);
  });
}

// Looks again for arrivals at all kept collectives of a group: a rank that
// joins late may write arrivals at old collectives.
void ArrivalTree::reopen(uint64_t key) {
  for (auto& [id, one] : all_) {
    if (id.key == key && !one.is_open) {
      one.is_open = true;
      open_.push_back(id);
    }
  }
}

// Takes the arrivals of this host's ranks at a collective. Returns true while
// some of these ranks are missing.
bool ArrivalTree::scan(
    Collective& one,
    const ClockLine& clock,
    uint64_t now_ns) {
  const ArrivalBoard::Group group = board_.find(one.id.key);
  arrivals_.clear();
  group.arrivals(one.id.seq, now_ns, arrivals_);
  one.is_open = arrivals_.size() < group.localRanks();
  const bool is_ready = !one.is_open || now_ns > one.begin_ns + kSettleNs;
  if (!is_ready || arrivals_.empty()) {
    return one.is_open;
  }
  Part here;
  for (ArrivalBoard::Arrival& arrival : arrivals_) {
    here.error_ns =
        std::max(here.error_ns, errorOf(clock.errorAt(arrival.at_ns)));
    arrival.at_ns += uint64_t(clock.offsetAt(arrival.at_ns));
    if (here.present == 0 ||
        isLastOf(
            arrival.at_ns, arrival.global_rank, here.last_ns, here.last_rank)) {
      here.last_ns = arrival.at_ns;
      here.last_rank = arrival.global_rank;
    }
    ++here.present;
  }
  const auto own =
      std::find_if(one.parts.begin(), one.parts.end(), [](const Part& part) {
        return part.host == 0;
      });
  if (own != one.parts.end() && own->present == here.present) {
    return one.is_open;
  }
  if (own == one.parts.end()) {
    one.parts.push_back(here);
  } else {
    *own = here;
  }
  std::erase_if(arrivals_, [&](const ArrivalBoard::Arrival& arrival) {
    return arrival.kind == ArrivalBoard::Kind::kAll ||
        (arrival.kind == ArrivalBoard::Kind::kSingle &&
         one.size > ArrivalBoard::kMostListed);
  });
  addListed(one, arrivals_);
  change(one);
  return one.is_open;
}

void ArrivalTree::addListed(
    Collective& one,
    const std::vector<ArrivalBoard::Arrival>& listed) {
  for (const ArrivalBoard::Arrival& arrival : listed) {
    const bool is_new = std::none_of(
        one.listed.begin(),
        one.listed.end(),
        [&](const ArrivalBoard::Arrival& before) {
          return before.rank == arrival.rank;
        });
    if (is_new && listed_ < kMaxListed) {
      one.listed.push_back(arrival);
      ++listed_;
    }
  }
}

void ArrivalTree::take(const ArrivalMessage& message, uint64_t now_ns) {
  for (const ArrivalRun& run : message.runs) {
    for (const KnownArrivals& known : run.collectives) {
      Collective* one = collective({run.key, known.seq}, run.size, now_ns);
      if (one == nullptr) {
        break;
      }
      if (message.header.goes_down) {
        takeFromParent(*one, known, message.error_ns, now_ns);
      } else {
        takeFromChild(*one, known, message);
      }
    }
  }
}

void ArrivalTree::takeFromChild(
    Collective& one,
    const KnownArrivals& known,
    const ArrivalMessage& message) {
  const size_t listed_before = one.listed.size();
  addListed(one, known.listed);
  auto part =
      std::find_if(one.parts.begin(), one.parts.end(), [&](const Part& each) {
        return each.host == message.header.host;
      });
  if (part == one.parts.end()) {
    one.parts.push_back({message.header.host});
    part = one.parts.end() - 1;
  }
  if (known.present > part->present) {
    part->present = known.present;
    part->last_ns = known.last_ns;
    part->last_rank = known.last_rank;
    part->error_ns = errorOf(message.error_ns);
    change(one);
  } else if (one.listed.size() > listed_before) {
    change(one);
  }
}

void ArrivalTree::takeFromParent(
    Collective& one,
    const KnownArrivals& known,
    uint64_t error_ns,
    uint64_t now_ns) {
  const size_t listed_before = one.listed.size();
  addListed(one, known.listed);
  if (known.present > one.last.present || one.listed.size() > listed_before) {
    setLast(
        one,
        {0, known.present, known.last_ns, known.last_rank, errorOf(error_ns)},
        now_ns);
  }
}

void ArrivalTree::setLast(Collective& one, const Part& last, uint64_t now_ns) {
  if (last.present == one.size && one.last.present != one.size) {
    finished_.emplace_back(now_ns + kKeepKnownNs, one.id);
  }
  one.last = last;
  one.up_sends = 0;
  if (one.down_sends == 0) {
    down_.push_back(one.id);
  }
  one.down_sends = kSends;
  known_.push_back(one.id);
}

void ArrivalTree::advance(bool is_root, uint64_t now_ns) {
  for (const Id& id : changed_) {
    Collective* one = find(id);
    if (one == nullptr) {
      continue;
    }
    one->is_changed = false;
    const Part all = total(*one);
    const bool was_known = one->last.present != 0;
    if (all.present >= one->size ||
        (is_root && was_known && all.present > one->last.present)) {
      setLast(*one, all, now_ns);
      continue;
    }
    if (was_known) {
      // Sends the last arrival down again, because a child that sent its
      // arrivals late may not have received the last arrival.
      setLast(*one, one->last, now_ns);
    }
    if (!is_root && !one->is_with_former) {
      if (one->up_sends == 0) {
        up_.push_back(id);
      }
      one->up_sends = kSends;
    }
  }
  changed_.clear();
  for (; !waiting_.empty(); waiting_.pop_front()) {
    Collective* one = find(waiting_.front());
    if (one == nullptr) {
      continue;
    }
    if (now_ns < one->begin_ns + kPartialNs) {
      break;
    }
    const Part all = total(*one);
    if (is_root && one->last.present == 0 && 2 * all.present >= one->size) {
      setLast(*one, all, now_ns);
    }
  }
  for (; !finished_.empty() && now_ns > finished_.front().first;
       finished_.pop_front()) {
    drop(finished_.front().second);
  }
  for (std::deque<Id>& by_age : by_age_) {
    for (; !by_age.empty(); by_age.pop_front()) {
      const Collective* one = find(by_age.front());
      if (one != nullptr && now_ns < one->begin_ns + kKeepNs) {
        break;
      }
      drop(by_age.front());
    }
  }
}

KnownArrivals ArrivalTree::known(const Collective& one, const Part& part) {
  return {one.id.seq, part.present, part.last_ns, part.last_rank, one.listed};
}

namespace {

// Sorts collectives for packing. Large groups come first, so that what does not
// fit concerns few ranks. Collectives of one group are consecutive, so that
// they form runs.
template <class Id, class SizeOf>
void sortForRuns(std::vector<Id>& ids, SizeOf sizeOf) {
  std::sort(ids.begin(), ids.end(), [&](const Id& a, const Id& b) {
    const uint32_t a_size = sizeOf(a);
    const uint32_t b_size = sizeOf(b);
    return a_size != b_size ? a_size > b_size
        : a.key != b.key    ? a.key < b.key
                            : a.seq < b.seq;
  });
}

} // namespace

void ArrivalTree::packUp(ArrivalPacker& out) {
  std::erase_if(up_, [&](const Id& id) {
    const Collective* one = find(id);
    return one == nullptr || one->up_sends == 0;
  });
  sortForRuns(up_, [&](const Id& id) { return find(id)->size; });
  for (const Id& id : up_) {
    Collective& one = *find(id);
    const Part all = total(one);
    if (!out.add(id.key, one.size, known(one, all), all.error_ns)) {
      return;
    }
    --one.up_sends;
    one.was_sent_up = true;
  }
}

void ArrivalTree::packDown(uint32_t child, ArrivalPacker& out) {
  std::erase_if(down_, [&](const Id& id) { return find(id) == nullptr; });
  sortForRuns(down_, [&](const Id& id) { return find(id)->size; });
  bool has_room = true;
  for (const Id& id : down_) {
    Collective& one = *find(id);
    const bool is_for_child =
        std::any_of(one.parts.begin(), one.parts.end(), [&](const Part& part) {
          return part.host == child;
        });
    if (is_for_child) {
      has_room = has_room &&
          out.add(id.key, one.size, known(one, one.last), one.last.error_ns);
      one.is_blocked = one.is_blocked || !has_room;
    }
  }
}

void ArrivalTree::endOfRound() {
  std::erase_if(down_, [&](const Id& id) {
    Collective* one = find(id);
    if (one == nullptr) {
      return true;
    }
    one->down_sends -= one->is_blocked ? 0 : 1;
    one->is_blocked = false;
    return one->down_sends == 0;
  });
}

void ArrivalTree::publish(
    const std::optional<ClockLine>& clock,
    uint64_t now_ns) {
  for (const Id& id : known_) {
    const Collective* one = find(id);
    if (one != nullptr && clock) {
      publish(*one, *clock, now_ns);
    }
  }
  known_.clear();
}

void ArrivalTree::publish(
    const Collective& one,
    const ClockLine& clock,
    uint64_t now_ns) noexcept {
  ArrivalBoard::Group group = board_.find(one.id.key);
  uint32_t end = 0;
  // A sequence number far from this host's would overwrite cells that are still
  // needed.
  if (!group || group.size() != one.size || !group.newestEnd(end) ||
      !isNear(one.id.seq, end, group.slots())) {
    return;
  }
  const uint64_t own_ns = ownTime(one.last.last_ns, clock);
  if (int64_t(own_ns - now_ns) > int64_t(kFutureNs) ||
      int64_t(own_ns - now_ns) < -int64_t(kPastNs)) {
    return;
  }
  for (ArrivalBoard::Arrival arrival : one.listed) {
    arrival.at_ns = ownTime(arrival.at_ns, clock);
    group.setListed(one.id.seq, arrival);
  }
  group.setLast(
      one.id.seq,
      {own_ns,
       one.last.error_ns + clock.errorAt(own_ns),
       one.last.last_rank,
       one.size - one.last.present});
}

void ArrivalTree::changeParent() {
  for (auto& [id, one] : all_) {
    if (one.was_sent_up && one.last.present == 0) {
      one.is_with_former = true;
      one.up_sends = 0;
    }
  }
}

} // namespace commprof
