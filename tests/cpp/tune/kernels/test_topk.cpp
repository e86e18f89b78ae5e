#include "tune/kernels/topk/topk.h"

#include <bit>
#include <cmath>
#include <random>
#include <string>

#include "check.h"
#include "kernel_levels.h"
#include "topk_arrays.h"
#include "tune/kernels/parallel.h"
#include "tune/kernels/topk/topk_search.h"

using namespace commprof::kernels;

namespace {

constexpr size_t kGuards = 64;
constexpr int32_t kGuard = 0x5a5a5a5a;

struct Result {
  explicit Result(size_t count)
      : indices(count + kGuards, kGuard),
        values(count + kGuards, std::bit_cast<float>(kGuard)) {}

  std::vector<int32_t> indices;
  std::vector<float> values;
  TopKStats stats;
};

bool selectionIsRight(
    const Result& result,
    const std::vector<float>& x,
    const std::vector<int32_t>& order,
    size_t k) {
  const size_t count = std::min(k, x.size());
  std::vector<char> expected(x.size());
  for (size_t i = 0; i < count; ++i) {
    expected[size_t(order[i])] = 1;
  }
  bool good = result.stats.count == count;
  size_t next = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (expected[i] != 0) {
      good = good && result.indices[next] == int32_t(i) &&
          bitsOf(result.values[next]) == bitsOf(x[i]);
      ++next;
    }
  }
  for (size_t i = count; i < count + kGuards; ++i) {
    good = good && result.indices[i] == kGuard &&
        bitsOf(result.values[i]) == uint32_t(kGuard);
  }
  return good;
}

bool residualIsRight(
    const std::vector<float>& residual,
    const Result& result,
    std::vector<float> sum) {
  for (size_t i = 0; i < result.stats.count; ++i) {
    sum[size_t(result.indices[i])] = 0.0f;
  }
  bool good = true;
  for (size_t i = 0; i < sum.size(); ++i) {
    good = good && bitsOf(residual[i]) == bitsOf(sum[i]);
  }
  return good;
}

bool memoryIsBounded(const TopKStats& stats, size_t n, size_t k) {
  return stats.passes <= 3 &&
      stats.candidates <= std::min(n, k + k / 2 + 65536) + 4096;
}

void note(bool good, const Data& data, size_t k, const char* what) {
  const std::string text = data.name +
      ", n = " + std::to_string(data.x.size()) + ", k = " + std::to_string(k) +
      ": " + what;
  check::note(good, text, __FILE__, __LINE__);
}

struct Parts {
  explicit Parts(const std::vector<float>& x)
      : gradient(x.size()), residual(x.size()), sum(x.size()) {
    std::mt19937 random(5);
    for (size_t i = 0; i < x.size(); ++i) {
      const bool split = random() % 4 == 0 && std::isfinite(x[i]);
      residual[i] = split ? x[i] * 0.25f : 0.0f;
      gradient[i] = split ? x[i] * 0.75f : x[i];
      sum[i] = gradient[i] + residual[i];
    }
    order = stableOrder(sum);
  }

  std::vector<float> gradient, residual, sum;
  std::vector<int32_t> order;
};

std::vector<size_t> chosenCounts(size_t n) {
  return {0, 1, 2, n / 100, n / 10, n / 2, n, n + 5};
}

void testPlain(const Data& data, TopKScratch& scratch) {
  const size_t n = data.x.size();
  const std::vector<int32_t> order = stableOrder(data.x);
  for (const size_t k : chosenCounts(n)) {
    Result result(std::min(k, n));
    result.stats = topK(
        data.x.data(),
        n,
        k,
        result.indices.data(),
        result.values.data(),
        scratch);
    note(selectionIsRight(result, data.x, order, k), data, k, "topK");
    note(memoryIsBounded(result.stats, n, k), data, k, "topK's memory");
  }
}

void testFeedback(const Data& data, const Parts& parts, TopKScratch& scratch) {
  const size_t n = data.x.size();
  for (const size_t k : chosenCounts(n)) {
    Result result(std::min(k, n));
    std::vector<float> residual = parts.residual;
    result.stats = topKFeedback(
        parts.gradient.data(),
        residual.data(),
        n,
        k,
        result.indices.data(),
        result.values.data(),
        scratch);
    note(
        selectionIsRight(result, parts.sum, parts.order, k),
        data,
        k,
        "feedback");
    note(residualIsRight(residual, result, parts.sum), data, k, "residual");
    note(memoryIsBounded(result.stats, n, k), data, k, "feedback's memory");
  }
}

bool allZero(const std::vector<float>& x) {
  bool good = true;
  for (const float value : x) {
    good = good && bitsOf(value) == 0;
  }
  return good;
}

struct Sum {
  explicit Sum(size_t n) : n_(n), memory_(n + 32, kGuardValue) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    at = memory_.data() + (64 - address % 64) % 64 / sizeof(float);
  }
  std::vector<float> values() const {
    return {at, at + n_};
  }
  bool guarded() const {
    return at[n_] == kGuardValue;
  }
  float* at;

 private:
  static constexpr float kGuardValue = 12345.0f;
  size_t n_;
  std::vector<float> memory_;
};

void testMoved(const Data& data, const Parts& parts, TopKScratch& scratch) {
  const size_t n = data.x.size();
  for (const size_t k : chosenCounts(n)) {
    Result result(std::min(k, n));
    std::vector<float> gradient = parts.gradient;
    const std::vector<float> residual = parts.residual;
    Sum sum(n);
    result.stats = topKMoved(
        gradient.data(),
        residual.data(),
        sum.at,
        n,
        k,
        result.indices.data(),
        result.values.data(),
        scratch);
    note(selectionIsRight(result, parts.sum, parts.order, k), data, k, "moved");
    note(
        residualIsRight(sum.values(), result, parts.sum), data, k, "moved sum");
    note(allZero(gradient) && sum.guarded(), data, k, "what it moved from");
  }
}

// The `true` in SearchInput asks for non-temporal stores.
void testStreamed(const Data& data, const Parts& parts, TopKScratch& scratch) {
  const size_t n = data.x.size(), k = n / 50 + 1;
  for (const KeyBand& band :
       {KeyBand{0, kLargestKey}, KeyBand{kLargestKey, kLargestKey}}) {
    Result result(k);
    std::vector<float> gradient = parts.gradient;
    Sum sum(n);
    const SearchInput input{
        gradient.data(),
        sum.at,
        n,
        parts.residual.data(),
        gradient.data(),
        true};
    result.stats = searchBand(
        input, k, band, result.indices.data(), result.values.data(), scratch);
    note(
        selectionIsRight(result, parts.sum, parts.order, k),
        data,
        k,
        "streamed");
    note(residualIsRight(sum.values(), result, parts.sum), data, k, "streamed");
    note(allZero(gradient) && sum.guarded(), data, k, "streamed from");
  }
}

// No sample gives these bands. High bands need repeated passes, and low bands
// have too many candidates.
void testMisleadingBands(
    const Data& data,
    const Parts& parts,
    TopKScratch& scratch) {
  const size_t n = data.x.size();
  const auto keyAt = [&](size_t place) {
    return int32_t(bitsOf(parts.sum[size_t(parts.order[place])]) & 0x7fffffffu);
  };
  std::vector<size_t> counts{n / 10 + 1};
  if (n < 60000) {
    counts.insert(counts.end(), {1, n / 100 + 1, n / 2 + 1, n});
  }
  for (const size_t k : counts) {
    const KeyBand bands[] = {
        {kLargestKey, kLargestKey},
        {keyAt(k / 2), kLargestKey},
        {keyAt(k - 1), keyAt(k - 1)},
        {0, kLargestKey},
        {0, 0}};
    for (const KeyBand& band : bands) {
      Result result(k);
      std::vector<float> residual = parts.residual;
      result.stats = searchBand(
          {parts.gradient.data(), residual.data(), n},
          k,
          band,
          result.indices.data(),
          result.values.data(),
          scratch);
      note(
          selectionIsRight(result, parts.sum, parts.order, k),
          data,
          k,
          "any band");
      note(residualIsRight(residual, result, parts.sum), data, k, "put back");
      note(memoryIsBounded(result.stats, n, k), data, k, "any band's memory");
    }
  }
}

void testThreads() {
  const size_t n = 3 * kGrain + 1001;
  TopKScratch scratch;
  const std::vector<Data> all = arrays(n);
  // The kinds are zeros, ties, ascending and mixed.
  for (const size_t kind : {0, 2, 7, 10}) {
    const Data& data = all[kind];
    const Parts parts(data.x);
    for (const size_t k : {size_t(1), n / 50}) {
      for (const KeyBand& band :
           {KeyBand{0, kLargestKey},
            KeyBand{int32_t(bitsOf(1e-3f)), kLargestKey},
            KeyBand{kLargestKey, kLargestKey}}) {
        Result result(k);
        std::vector<float> residual = parts.residual;
        result.stats = searchBand(
            {parts.gradient.data(), residual.data(), n},
            k,
            band,
            result.indices.data(),
            result.values.data(),
            scratch);
        note(
            selectionIsRight(result, parts.sum, parts.order, k),
            data,
            k,
            "threads");
        note(residualIsRight(residual, result, parts.sum), data, k, "threads");
      }
    }
    testStreamed(data, parts, scratch);
  }
}

void testUnaligned() {
  const Data data = arrays(4097)[10];
  for (size_t skip = 1; skip < 16; ++skip) {
    const std::vector<float> x(data.x.begin() + long(skip), data.x.end());
    Result result(50);
    TopKScratch scratch;
    result.stats = topK(
        data.x.data() + skip,
        x.size(),
        50,
        result.indices.data(),
        result.values.data(),
        scratch);
    CHECK(selectionIsRight(result, x, stableOrder(x), 50));
  }
}

void testAll() {
  TopKScratch scratch;
  for (const size_t n :
       {0,   1,    2,    15,   16,   17,   63,    64,    65,    100,
        127, 1023, 1024, 4095, 4096, 4097, 65535, 65536, 65537, 300001}) {
    if (check::kSanitized && n > 4097 && n != 65537) {
      continue;
    }
    for (const Data& data : arrays(n)) {
      testPlain(data, scratch);
      const Parts parts(data.x);
      testFeedback(data, parts, scratch);
      testMoved(data, parts, scratch);
      if (n > 0) {
        testMisleadingBands(data, parts, scratch);
        testStreamed(data, parts, scratch);
      }
    }
  }
  testUnaligned();
}

} // namespace

int main() {
  check::atEachLevel(testAll);
  setThreads(3);
  testThreads();
  return check::report();
}
