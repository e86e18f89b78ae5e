#include "kernels/topk/topk_select.h"

#include <algorithm>
#include <array>
#include <functional>

namespace commprof::kernels {

namespace {

constexpr size_t kBins = 1024;
// Neighbours count in different tables: where they are equal, neither increment
// waits for the other.
constexpr size_t kTables = 2;
constexpr size_t kFew = 64; // sorted out without a histogram

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

// The cut after the k-th largest of keys, all of which are in the band.
// Narrows the band to one bin at a time; keys are packed in place.
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
    return {-1, 0}; // all
  }
  size_t higher = 0;
  const size_t held = COMMPROF_PICK(topKTable).keysUpTo(
      values, count, band.highest, keys, &higher);
  if (higher >= k) { // the sample was misleading
    return findCut(values, count, k, {band.lowest, kLargestKey}, keys);
  }
  return kthLargest(keys, held, k - higher, band);
}

} // namespace commprof::kernels
