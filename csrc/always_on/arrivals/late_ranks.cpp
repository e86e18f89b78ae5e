#include "always_on/arrivals/late_ranks.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace commprof {

namespace {

// Spreads `waited_ns` evenly from `begin` to `end`, and returns the part that
// lies before `time`.
double before(double begin, double end, double waited_ns, double time) {
  const double length = std::max(1.0, end - begin);
  return std::clamp(time - begin, 0.0, length) / length * waited_ns;
}

// At the end of backward, DDP waits for each bucket and then copies the bucket.
// Returns the copy time per byte with which a replay of this loop waits for
// `blocked_ns` in total.
double copyNsPerByte(
    const std::vector<double>& end_ns,
    const std::vector<double>& copied_bytes,
    double blocked_ns,
    double slowest) {
  double speed = 0;
  for (size_t i = 0; i < end_ns.size(); ++i) {
    const double early_ns = end_ns[i] - blocked_ns;
    if (early_ns > 0) {
      const double limit =
          copied_bytes[i] > 0 ? early_ns / copied_bytes[i] : slowest;
      speed = std::max(speed, limit);
    }
  }
  return std::min(slowest, speed);
}

} // namespace

uint64_t waitedBefore(const Exposure& exposure, uint64_t arrival_ns) noexcept {
  const auto origin = int64_t(exposure.begin_ns);
  return uint64_t(
      std::llround(before(
          0,
          double(int64_t(exposure.end_ns) - origin),
          double(exposure.waited_ns),
          double(int64_t(arrival_ns) - origin))));
}

const BucketTimes& decidingBucket(
    const std::vector<BucketTimes>& buckets) noexcept {
  const BucketTimes* deciding = &buckets.front();
  uint64_t link_busy_until_ns = 0;
  for (const BucketTimes& bucket : buckets) {
    if (bucket.last_arrival_ns >= link_busy_until_ns) {
      deciding = &bucket;
    }
    link_busy_until_ns = std::max(link_busy_until_ns, bucket.end_ns);
  }
  return *deciding;
}

uint64_t waitedBefore(
    const Exposure& finalisation,
    const std::vector<BucketTimes>& buckets,
    uint64_t arrival_ns) {
  const auto relative = [&](uint64_t time_ns) {
    return double(int64_t(time_ns) - int64_t(finalisation.begin_ns));
  };
  const double window_ns = relative(finalisation.end_ns);
  const double arrival = relative(arrival_ns);
  const auto blocked_ns = double(finalisation.waited_ns);
  std::vector<double> end_ns;
  std::vector<double> copied_bytes;
  double size_bytes = 0;
  for (const BucketTimes& bucket : buckets) {
    end_ns.push_back(std::min(relative(bucket.end_ns), window_ns));
    copied_bytes.push_back(size_bytes);
    size_bytes += bucket.size_bytes;
  }
  const double speed = copyNsPerByte(
      end_ns, copied_bytes, blocked_ns, window_ns / std::max(1.0, size_bytes));
  double all_ns = 0;
  for (size_t i = 0; i < end_ns.size(); ++i) {
    all_ns = std::max(all_ns, end_ns[i] - speed * copied_bytes[i]);
  }
  const double scale = all_ns > 0 ? std::min(1.0, blocked_ns / all_ns) : 1.0;
  double reached_ns = 0;
  double wait_ns = 0;
  for (size_t i = 0; i < end_ns.size(); ++i) {
    const double stretch = end_ns[i] - speed * copied_bytes[i] - reached_ns;
    if (stretch > 0) {
      reached_ns += stretch;
      wait_ns +=
          before(end_ns[i] - stretch, end_ns[i], stretch * scale, arrival);
    }
  }
  const double rest_ns = blocked_ns - reached_ns * scale;
  if (rest_ns > 0.5) {
    wait_ns += before(reached_ns, window_ns, rest_ns, arrival);
  }
  return uint64_t(std::llround(wait_ns));
}

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
  while (
      waited_ns_.rbegin()->first.first - waited_ns_.begin()->first.first >=
          kMaxBlocks ||
      (waited_ns_.size() > kMaxCells &&
       waited_ns_.rbegin()->first.first != waited_ns_.begin()->first.first)) {
    doubleBlocks();
  }
  // Only one block is left, and it has one cell too many: drop the shortest
  // wait.
  if (waited_ns_.size() > kMaxCells) {
    waited_ns_.erase(
        std::min_element(
            waited_ns_.begin(),
            waited_ns_.end(),
            [](const auto& one, const auto& other) {
              return one.second < other.second;
            }));
  }
}

void LateRanks::moveExposed(int64_t by_ns) {
  const auto blocks = std::llround(double(by_ns) / double(block_ns_));
  if (blocks == 0) {
    return;
  }
  // This wraps modulo 2**64, as unsigned times do.
  const uint64_t whole_ns = uint64_t(blocks) * block_ns_;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> moved;
  for (const auto& [cell, wait_ns] : waited_ns_) {
    moved[{(cell.first * block_ns_ + whole_ns) / block_ns_, cell.second}] =
        wait_ns;
  }
  waited_ns_.swap(moved);
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
  // Lists at most kMaxCells ranks: those with the longest waits.
  std::vector<uint64_t> waits_ns;
  for (const auto& [rank, last] : last_) {
    waits_ns.push_back(last.wait_ns);
  }
  const bool are_all = waits_ns.size() <= kMaxCells;
  if (!are_all) {
    std::nth_element(
        waits_ns.begin(),
        waits_ns.begin() + kMaxCells - 1,
        waits_ns.end(),
        std::greater<>());
  }
  const uint64_t least_ns = are_all ? 0 : waits_ns[kMaxCells - 1];
  Last others;
  size_t written = 0;
  out += "\"last\":[";
  const char* separator = "";
  for (const auto& [rank, last] : last_) {
    if (last.wait_ns < least_ns || written == kMaxCells) {
      others.count += last.count;
      others.wait_ns += last.wait_ns;
      continue;
    }
    ++written;
    out += separator;
    number("{\"rank\":", rank);
    number(",\"count\":", last.count);
    number(",\"wait_ns\":", last.wait_ns);
    out += "}";
    separator = ",";
  }
  number("],\"last_others\":{\"count\":", others.count);
  number(",\"wait_ns\":", others.wait_ns);
  number("},\"waited_for\":{\"block_ns\":", block_ns_);
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
