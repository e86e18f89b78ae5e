#include "kernels/topk/topk_segment.h"

#include <algorithm>
#include <cstring>

#include "kernels/topk/topk_select.h"

namespace commprof::kernels {

namespace {

// Candidates that may be held after a block. Beyond k, so that choosing again
// costs a fixed share of what was read since the last time.
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

// Leaves the k best of what is held, and returns their smallest key: what comes
// later has a higher index and must be above it.
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

} // namespace commprof::kernels
