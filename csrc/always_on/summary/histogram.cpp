#include "always_on/summary/histogram.h"

#include <algorithm>
#include <bit>

namespace commprof {

uint32_t Histogram::bucketOf(uint64_t ns) noexcept {
  if (ns < kPerOctave) {
    return uint32_t(ns);
  }
  ns = std::min(ns, kLargestNs);
  const uint32_t shift = uint32_t(std::bit_width(ns)) - 7;
  return shift * kPerOctave + uint32_t(ns >> shift);
}

uint64_t& Histogram::at(uint32_t bucket) {
  auto& octave = octaves_[bucket / kPerOctave];
  if (!octave) {
    octave = std::make_unique<Octave>(Octave{});
  }
  return (*octave)[bucket % kPerOctave];
}

void Histogram::add(uint64_t ns) {
  ++at(bucketOf(ns));
  ++count_;
  sum_ += ns;
  min_ = std::min(min_, ns);
  max_ = std::max(max_, ns);
}

template <class Visit>
void Histogram::forEach(Visit&& visit) const {
  for (uint32_t octave = 0; octave < kOctaves; ++octave) {
    for (uint32_t i = 0; octaves_[octave] && i < kPerOctave; ++i) {
      if (const uint64_t count = (*octaves_[octave])[i]) {
        visit(octave * kPerOctave + i, count);
      }
    }
  }
}

void Histogram::merge(const Histogram& other) {
  other.forEach(
      [this](uint32_t bucket, uint64_t count) { at(bucket) += count; });
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

void Histogram::appendJson(std::string& out) const {
  const auto field = [&out](const char* name, uint64_t value) {
    out.append(name).append(std::to_string(value));
  };
  field("{\"count\":", count_);
  field(",\"sum\":", sum_);
  field(",\"min\":", min());
  field(",\"max\":", max_);
  out += ",\"buckets\":[";
  uint32_t last = 0;
  bool first = true;
  forEach([&](uint32_t bucket, uint64_t count) {
    field(first ? "" : ",", bucket - last);
    field(",", count);
    last = bucket;
    first = false;
  });
  out += "]}";
}

} // namespace commprof
