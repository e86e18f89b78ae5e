#include "tune/kernels/topk/topk_search.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "tune/kernels/parallel.h"

namespace commprof::kernels {

namespace {

constexpr size_t kBins = 1024;
// Neighbouring keys are counted in different tables, because two increments of
// the same counter would wait for each other.
constexpr size_t kTables = 2;
constexpr size_t kFew = 64; // up to this number of keys, no histogram is made

using Histogram = std::array<std::array<uint32_t, kBins>, kTables>;

void countKeys(
    const int32_t* keys,
    size_t count,
    int32_t lowest,
    int shift,
    Histogram& bins) {
  bins = {};
  size_t i = 0;
  for (; i + kTables <= count; i += kTables) {
    for (size_t j = 0; j < kTables; ++j) {
      ++bins[j][size_t(keys[i + j] - lowest) >> shift];
    }
  }
  for (; i < count; ++i) {
    ++bins[0][size_t(keys[i] - lowest) >> shift];
  }
}

Cut cutFew(int32_t* keys, size_t count, size_t k) {
  std::nth_element(keys, keys + (k - 1), keys + count, std::greater<>());
  const int32_t key = keys[k - 1];
  const auto above = std::count_if(
      keys, keys + (k - 1), [key](int32_t other) { return other > key; });
  return {key, k - size_t(above)};
}

// Returns the cut that selects the k largest keys. All keys must be in the
// band. Each round narrows the band to one bin of a histogram. Overwrites
// `keys`.
Cut kthLargest(int32_t* keys, size_t count, size_t k, KeyBand band) {
  Histogram bins;
  while (count > kFew) {
    int shift = 0;
    while (uint32_t(band.highest - band.lowest) >> shift >= kBins) {
      ++shift;
    }
    countKeys(keys, count, band.lowest, shift, bins);
    size_t bin = kBins;
    size_t here = 0;
    while (true) {
      --bin;
      here = size_t(bins[0][bin]) + bins[1][bin];
      if (here >= k) {
        break;
      }
      k -= here;
    }
    band.lowest += int32_t(bin << shift);
    if (shift == 0) {
      return {band.lowest, k};
    }
    const int64_t bin_end = band.lowest + ((int64_t(1) << shift) - 1);
    band.highest = int32_t(std::min<int64_t>(band.highest, bin_end));
    count = COMMPROF_PICK(topKTable).keysWithin(
        keys, count, band.lowest, band.highest, keys);
  }
  return cutFew(keys, count, k);
}

} // namespace

Cut findCut(
    const float* values,
    size_t count,
    size_t k,
    KeyBand band,
    int32_t* keys) {
  if (count == k) {
    return {-1, 0}; // all keys are above -1
  }
  size_t higher = 0;
  const size_t held = COMMPROF_PICK(topKTable).keysUpTo(
      values, count, band.highest, keys, &higher);
  if (higher >= k) { // the sample was misleading
    return findCut(values, count, k, {band.lowest, kLargestKey}, keys);
  }
  return kthLargest(keys, held, k - higher, band);
}

namespace {

// Largest number of candidates that a segment keeps. It exceeds k, so that many
// values are read before the k largest are chosen again.
size_t capacity(size_t n, size_t k) {
  return std::min(n, k + k / 2 + 65536);
}

} // namespace

size_t Segment::room(size_t n, size_t k) {
  return capacity(n, k) + kBlock + kPad;
}

void Segment::sweep(const SearchInput& input, KeyBand band) {
  count_ = 0;
  int32_t above = band.lowest - 1;
  for (size_t begin = begin_; begin < end_; begin += kBlock) {
    collect(input, begin, std::min(end_, begin + kBlock), above);
    most_ = std::max(most_, count_);
    if (count_ > capacity(input.n, k_)) {
      above = chooseAgain(input.residual, band);
    }
  }
}

void Segment::collect(
    const SearchInput& input,
    size_t begin,
    size_t end,
    int32_t above) {
  const TopKTable& table = COMMPROF_PICK(topKTable);
  float* residual = input.residual;
  if (residual == nullptr) {
    count_ = table.collect(input.x, begin, end, above, held_, count_);
  } else if (input.summed) {
    count_ = table.collectResidual(residual, begin, end, above, held_, count_);
  } else if (input.before != nullptr) {
    count_ = table.collectMoved(
        input.spent,
        input.before,
        residual,
        input.streams,
        begin,
        end,
        above,
        held_,
        count_);
  } else {
    count_ =
        table.collectSum(input.x, residual, begin, end, above, held_, count_);
  }
}

// Keeps the k largest candidates and returns their smallest key. Later values
// must have larger keys, because equal keys are selected by lowest index.
int32_t Segment::chooseAgain(float* residual, KeyBand& band) {
  ++reselections_;
  const Cut cut = findCut(held_.values, count_, k_, band, keys_);
  count_ = COMMPROF_PICK(topKTable).keep(
      held_, count_, cut, held_, count_ + kPad, residual);
  band.lowest = cut.key;
  band.highest = std::max(band.highest, band.lowest);
  return cut.key;
}

void Segment::putBack(float* residual) {
  for (size_t i = 0; i < count_; ++i) {
    residual[held_.indices[i]] = held_.values[i];
  }
}

void Segment::moveTo(Pairs to) {
  if (to.indices != held_.indices) {
    std::memmove(to.indices, held_.indices, count_ * sizeof(int32_t));
    std::memmove(to.values, held_.values, count_ * sizeof(float));
  }
}

namespace {

class Search {
 public:
  Search(const SearchInput& input, size_t k, KeyBand band, TopKScratch& scratch)
      : input_(input), k_(k), band_(band) {
    const size_t pieces = std::max<size_t>(1, input.n / kGrain);
    const size_t count = std::min(size_t(threads()), pieces);
    const size_t room = Segment::room(input.n, k);
    if (scratch.indices.size() < count * room) {
      scratch.indices.resize(count * room);
      scratch.values.resize(count * room);
    }
    if (scratch.keys.size() < count * room) {
      scratch.keys.resize(count * room);
    }
    held_ = {scratch.indices.data(), scratch.values.data()};
    keys_ = scratch.keys.data();
    const size_t step =
        (input.n / count + Segment::kBlock) & ~(Segment::kBlock - 1);
    for (size_t i = 0; i < count; ++i) {
      const Pairs held{held_.indices + i * room, held_.values + i * room};
      const size_t begin = std::min(input.n, i * step);
      const size_t end = std::min(input.n, begin + step);
      segments_.emplace_back(begin, end, k, held, keys_ + i * room);
    }
  }

  TopKStats run(int32_t* indices, float* values) {
    TopKStats stats;
    stats.count = k_;
    while (sweep(), ++stats.passes, found() < k_) {
      putBack();
      lowerBand(stats.passes);
    }
    for (const Segment& segment : segments_) {
      stats.candidates += segment.most();
      stats.reselections += segment.reselections();
    }
    const size_t count = gather();
    const Cut cut = findCut(held_.values, count, k_, band_, keys_);
    COMMPROF_PICK(topKTable).keep(
        held_, count, cut, {indices, values}, k_, input_.residual);
    return stats;
  }

 private:
  void sweep() {
    const size_t count = segments_.size();
    parallelFor(count, 1, threads(), [this](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        segments_[i].sweep(input_, band_);
      }
    });
    input_.summed = true;
  }

  size_t found() const {
    size_t count = 0;
    for (const Segment& segment : segments_) {
      count += segment.count();
    }
    return count;
  }

  void putBack() {
    for (Segment& segment : segments_) {
      if (input_.residual != nullptr) {
        segment.putBack(input_.residual);
      }
    }
  }

  // Widens the band after a pass that found too few values. After the first
  // pass, its lower end becomes half as large in magnitude; after later passes,
  // it becomes 0.
  void lowerBand(uint32_t passes) {
    constexpr int32_t kHalf = 1 << 23;
    const bool half = passes == 1 && band_.lowest > kHalf;
    band_ = {half ? band_.lowest - kHalf : 0, kLargestKey};
  }

  // Moves the candidates of all segments to the beginning of held_; returns
  // their number.
  size_t gather() {
    size_t count = 0;
    for (Segment& segment : segments_) {
      segment.moveTo({held_.indices + count, held_.values + count});
      count += segment.count();
    }
    return count;
  }

  SearchInput input_;
  size_t k_;
  KeyBand band_;
  Pairs held_;
  int32_t* keys_;
  std::vector<Segment> segments_;
};

} // namespace

TopKStats searchBand(
    const SearchInput& input,
    size_t k,
    KeyBand band,
    int32_t* indices,
    float* values,
    TopKScratch& scratch) {
  return Search(input, k, band, scratch).run(indices, values);
}

} // namespace commprof::kernels
