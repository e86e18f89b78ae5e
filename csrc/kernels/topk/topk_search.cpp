#include "kernels/topk/topk_search.h"

#include <algorithm>
#include <vector>

#include "kernels/parallel.h"
#include "kernels/topk/topk_segment.h"
#include "kernels/topk/topk_select.h"

namespace commprof::kernels {

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

  // To half the magnitude first, then to everything.
  void lowerBand(uint32_t passes) {
    constexpr int32_t kHalf = 1 << 23;
    const bool half = passes == 1 && band_.lowest > kHalf;
    band_ = {half ? band_.lowest - kHalf : 0, kLargestKey};
  }

  // Puts the segments' candidates side by side.
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
