#include "tune/kernels/topk/topk_sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

namespace commprof::kernels {

namespace {

constexpr size_t kLine = 16; // number of values in a cache line
constexpr size_t kFewestLines = 64; // with fewer lines, no sample is taken
constexpr size_t kBatch = 32; // number of lines that are prefetched together
constexpr int kBinShift = 17; // 64 bins for each power of two
constexpr size_t kBins = size_t(1) << (31 - kBinShift);

// Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014.
uint64_t splitMix(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

size_t sampledLines(size_t n) {
  const size_t values = std::clamp<size_t>(n / 256, 4096, 32768);
  return std::min(n / kLine, values / kLine);
}

void countLine(
    const float* x,
    const float* residual,
    size_t first,
    int32_t* bins) {
  for (size_t i = first; i < first + kLine; ++i) {
    const float value = residual == nullptr ? x[i] : x[i] + residual[i];
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    ++bins[(bits & kLargestKey) >> kBinShift];
  }
}

void countSample(
    const float* x,
    const float* residual,
    size_t n,
    size_t lines,
    uint64_t& seed,
    int32_t* bins) {
  const size_t stride = n / kLine / lines;
  std::array<size_t, kBatch> firsts;
  for (size_t done = 0; done < lines; done += kBatch) {
    const size_t batch = std::min(kBatch, lines - done);
    for (size_t i = 0; i < batch; ++i) {
      const size_t jitter = (splitMix(seed) >> 32) * stride >> 32;
      firsts[i] = ((done + i) * stride + jitter) * kLine;
      __builtin_prefetch(x + firsts[i]);
      if (residual != nullptr) {
        __builtin_prefetch(residual + firsts[i]);
      }
    }
    for (size_t i = 0; i < batch; ++i) {
      countLine(x, residual, firsts[i], bins);
    }
  }
}

// Returns the bin of the place-th largest sampled value, counted from 1. If the
// sample has fewer values, returns 0.
size_t binOf(const int32_t* bins, size_t place) {
  constexpr size_t kStride = 64; // bins that are added up together
  size_t bin = kBins;
  size_t above = 0;
  while (bin > 0) {
    const int32_t* stride = bins + bin - kStride;
    const size_t here = size_t(std::accumulate(stride, stride + kStride, 0));
    if (above + here >= place) {
      break;
    }
    above += here;
    bin -= kStride;
  }
  while (bin > 0 && above < place) {
    --bin;
    above += size_t(bins[bin]);
  }
  return bin;
}

} // namespace

KeyBand guessBand(
    const float* x,
    const float* residual,
    size_t n,
    size_t k,
    TopKScratch& scratch) {
  const size_t lines = sampledLines(n);
  if (lines < kFewestLines) {
    return {};
  }
  if (scratch.keys.size() < kBins) {
    scratch.keys.resize(kBins);
  }
  int32_t* bins = scratch.keys.data();
  std::fill(bins, bins + kBins, 0);
  countSample(x, residual, n, lines, scratch.seed, bins);
  // The number of sampled values among the k largest is binomial; the band
  // covers four standard deviations on either side.
  const double expected = double(k) / double(n) * double(lines * kLine);
  const double spread = 4.0 * std::sqrt(expected);
  const double most = expected + spread + 4.0;
  const double least = expected - spread - 2.0;
  KeyBand band;
  if (least > 0) {
    band.highest =
        int32_t(((binOf(bins, size_t(least) + 1) + 1) << kBinShift) - 1);
  }
  if (most <= double(lines * kLine)) {
    band.lowest = int32_t(binOf(bins, size_t(most) + 1) << kBinShift);
  }
  return band;
}

} // namespace commprof::kernels
