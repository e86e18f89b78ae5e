#include "kernels/topk_search.h"

#include <algorithm>

#include "kernels/topk_select.h"

namespace commprof::kernels {

namespace {

// Between two looks at whether the candidates still fit.
constexpr size_t kBlock = 4096;

class Search {
 public:
  Search(
      const float* x,
      float* residual,
      size_t n,
      size_t k,
      KeyBand band,
      TopKScratch& scratch)
      : x_(x),
        residual_(residual),
        n_(n),
        k_(k),
        capacity_(std::min(n, k + k / 2 + 65536)),
        band_(band),
        table_(COMMPROF_PICK(topKTable)),
        scratch_(scratch) {
    const size_t room = capacity_ + kBlock + kPad;
    if (scratch.indices.size() < room) {
      scratch.indices.resize(room);
      scratch.values.resize(room);
    }
    held_ = {scratch.indices.data(), scratch.values.data()};
    stats_.count = k;
  }

  TopKStats run(int32_t* indices, float* values) {
    while (!sweep()) {
      putBack();
      lowerBand();
    }
    const Cut cut = findCut(held_.values, count_, k_, band_, scratch_);
    table_.keep(held_, count_, cut, {indices, values}, k_, residual_);
    return stats_;
  }

 private:
  // False where fewer than k were found.
  bool sweep() {
    ++stats_.passes;
    count_ = 0;
    int32_t above = band_.lowest - 1;
    for (size_t begin = 0; begin < n_; begin += kBlock) {
      collect(begin, std::min(n_, begin + kBlock), above);
      stats_.candidates = std::max(stats_.candidates, count_);
      if (count_ > capacity_) {
        above = chooseAgain();
      }
    }
    return count_ >= k_;
  }

  void collect(size_t begin, size_t end, int32_t above) {
    if (residual_ == nullptr) {
      count_ = table_.collect(x_, begin, end, above, held_, count_);
    } else if (stats_.passes == 1) {
      count_ =
          table_.collectSum(x_, residual_, begin, end, above, held_, count_);
    } else {
      count_ =
          table_.collectResidual(residual_, begin, end, above, held_, count_);
    }
  }

  // Leaves the k best of what is held, and returns their smallest key: what
  // comes later has a higher index and must be above it.
  int32_t chooseAgain() {
    ++stats_.reselections;
    const Cut cut = findCut(held_.values, count_, k_, band_, scratch_);
    count_ = table_.keep(
        held_, count_, cut, held_, capacity_ + kBlock + kPad, residual_);
    band_.lowest = cut.key;
    band_.highest = std::max(band_.highest, band_.lowest);
    return cut.key;
  }

  void putBack() {
    if (residual_ != nullptr) {
      for (size_t i = 0; i < count_; ++i) {
        residual_[held_.indices[i]] = held_.values[i];
      }
    }
  }

  // To half the magnitude first, then to everything.
  void lowerBand() {
    constexpr int32_t kHalf = 1 << 23;
    const bool first = stats_.passes == 1 && band_.lowest > kHalf;
    band_ = {first ? band_.lowest - kHalf : 0, kLargestKey};
  }

  const float* x_;
  float* residual_;
  size_t n_;
  size_t k_;
  size_t capacity_; // candidates that may be held after a block
  KeyBand band_;
  const TopKTable& table_;
  TopKScratch& scratch_;
  Pairs held_;
  size_t count_ = 0;
  TopKStats stats_;
};

} // namespace

TopKStats searchBand(
    const float* x,
    float* residual,
    size_t n,
    size_t k,
    KeyBand band,
    int32_t* indices,
    float* values,
    TopKScratch& scratch) {
  return Search(x, residual, n, k, band, scratch).run(indices, values);
}

} // namespace commprof::kernels
