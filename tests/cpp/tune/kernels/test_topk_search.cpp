#include "tune/kernels/topk/topk.h"

#include <cstring>
#include <random>

#include "check.h"
#include "kernel_levels.h"
#include "topk_arrays.h"
#include "tune/kernels/topk/topk_search.h"

using namespace commprof::kernels;

namespace {

void testRepeatedPasses() {
  const size_t n = 100000, k = 1000;
  std::vector<float> x(n), values(k);
  std::vector<int32_t> indices(k);
  std::mt19937 random(1);
  for (float& value : x) {
    value = std::normal_distribution<float>()(random);
  }
  TopKScratch scratch;
  const auto passes = [&](KeyBand band) {
    return searchBand(
               {x.data(), nullptr, n},
               k,
               band,
               indices.data(),
               values.data(),
               scratch)
        .passes;
  };
  // 4.6 % of the values are above 2 and 0.3 % are above 3. `k` is 1 %.
  CHECK_EQ(passes({int32_t(bitsOf(2.0f)), kLargestKey}), 1u);
  CHECK_EQ(passes({int32_t(bitsOf(3.0f)), kLargestKey}), 2u);
  CHECK_EQ(passes({int32_t(bitsOf(40.0f)), kLargestKey}), 3u);
}

void testCandidateOverflow() {
  const size_t n = 1000000, k = 1000;
  std::vector<float> x(n), values(k);
  std::vector<int32_t> indices(k);
  for (size_t i = 0; i < n; ++i) {
    x[i] = float(i);
  }
  TopKScratch scratch;
  const TopKStats stats = searchBand(
      {x.data(), nullptr, n},
      k,
      {0, kLargestKey},
      indices.data(),
      values.data(),
      scratch);
  CHECK_EQ(stats.passes, 1u);
  CHECK(stats.reselections >= n / (65536 + k) - 1);
  CHECK_EQ(indices[0], int32_t(n - k));
  CHECK_EQ(indices[k - 1], int32_t(n - 1));
}

void testSeedChangesNothing() {
  const Data data = arrays(65537)[10];
  const size_t n = data.x.size(), k = n / 100;
  std::vector<int32_t> first(k), again(k);
  std::vector<float> values(k);
  TopKScratch scratch;
  topK(data.x.data(), n, k, first.data(), values.data(), scratch);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    scratch.seed = seed;
    topK(data.x.data(), n, k, again.data(), values.data(), scratch);
    CHECK(first == again);
  }
}

// The histogram has 1024 bins.
void testCutAtTheEndOfABand() {
  const int32_t lowest = int32_t(bitsOf(1.0f));
  for (const int32_t wide : {1022, 1023, 1024, 1025, 2047, 2048}) {
    const size_t count = size_t(wide) + 1;
    std::vector<float> values(count + kPad);
    std::vector<int32_t> keys(count + kPad);
    for (int32_t i = 0; i <= wide; ++i) {
      const int32_t bits = lowest + i;
      std::memcpy(&values[size_t(i)], &bits, sizeof(bits));
    }
    for (const size_t k : {size_t(1), size_t(2), count - 1}) {
      const KeyBand band{lowest, lowest + wide};
      const Cut cut = findCut(values.data(), count, k, band, keys.data());
      CHECK_EQ(cut.key, lowest + wide + 1 - int32_t(k));
      CHECK_EQ(cut.ties, 1u);
    }
  }
}

void testTooManyValuesAreRejected() {
  TopKScratch scratch;
  const float x = 0;
  float value = 0;
  int32_t index = 0;
  CHECK_THROWS(
      std::invalid_argument,
      topK(&x, size_t(1) << 31, 1, &index, &value, scratch));
}

void testAll() {
  testRepeatedPasses();
  testCandidateOverflow();
  testSeedChangesNothing();
  testCutAtTheEndOfABand();
}

} // namespace

int main() {
  check::atEachLevel(testAll);
  testTooManyValuesAreRejected();
  return check::report();
}
