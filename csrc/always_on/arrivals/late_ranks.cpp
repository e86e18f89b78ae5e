#include "always_on/arrivals/late_ranks.h"

namespace commprof {

void LateRanks::wasLast(uint32_t rank, uint64_t wait_ns) {
  Last& last = last_[rank];
  ++last.count;
  last.wait_ns += wait_ns;
}

void LateRanks::exposed(uint64_t at_ns, uint32_t rank, uint64_t wait_ns) {
  if (wait_ns == 0) {
    return;
  }
  waited_ns_[{at_ns / block_ns_, rank}] += wait_ns;
  // One block cannot hold more cells than there are ranks.
  while (
      waited_ns_.rbegin()->first.first - waited_ns_.begin()->first.first >=
          kMaxBlocks ||
      (waited_ns_.size() > kMaxCells &&
       waited_ns_.rbegin()->first.first != waited_ns_.begin()->first.first)) {
    doubleBlocks();
  }
}

void LateRanks::forgetExposed() {
  block_ns_ = kFirstBlockNs;
  waited_ns_.clear();
}

void LateRanks::doubleBlocks() {
  block_ns_ *= 2;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> wider;
  for (const auto& [cell, wait_ns] : waited_ns_) {
    wider[{cell.first / 2, cell.second}] += wait_ns;
  }
  waited_ns_.swap(wider);
}

void LateRanks::appendJson(std::string& out) const {
  const auto number = [&out](const char* name, uint64_t value) {
    out.append(name).append(std::to_string(value));
  };
  out += "\"last\":[";
  const char* separator = "";
  for (const auto& [rank, last] : last_) {
    out += separator;
    number("{\"rank\":", rank);
    number(",\"count\":", last.count);
    number(",\"wait_ns\":", last.wait_ns);
    out += "}";
    separator = ",";
  }
  number("],\"waited_for\":{\"block_ns\":", block_ns_);
  out += ",\"cells\":[";
  separator = "";
  for (const auto& [cell, wait_ns] : waited_ns_) {
    out += separator;
    number("", cell.first);
    number(",", cell.second);
    number(",", wait_ns);
    separator = ",";
  }
  out += "]}";
}

} // namespace commprof
