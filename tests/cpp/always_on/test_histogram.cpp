// Tests the histogram: buckets, quantiles against exact ones, merging in any
// order. With a file of numbers as argument: prints their histogram's JSON.
#include "always_on/summary/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <vector>

#include "check.h"

using namespace commprof;

namespace {

using Random = std::mt19937_64;
constexpr double kHourNs = 3.6e12;

std::string json(const Histogram& histogram) {
  std::string out;
  histogram.appendJson(out);
  return out;
}

Histogram histogramOf(const std::vector<uint64_t>& values) {
  Histogram histogram;
  for (const uint64_t value : values) {
    histogram.add(value);
  }
  return histogram;
}

// Checks that every bucket contains its middle, that buckets are contiguous,
// and that both ends of each are within 1/128 of its middle.
void bucketsAreContiguousAndNarrow() {
  uint32_t last = 0;
  for (double x = 0; x < kHourNs; x = x * 1.003 + 1) {
    const auto ns = uint64_t(x);
    const uint32_t bucket = Histogram::bucketOf(ns);
    CHECK(bucket >= last && bucket < Histogram::kBuckets);
    last = bucket;
    const uint64_t middle = Histogram::valueOf(bucket);
    CHECK_EQ(Histogram::bucketOf(middle), bucket);
    CHECK(std::abs(double(middle) - double(ns)) * 128 <= double(ns));
  }
  for (uint32_t bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    CHECK_EQ(Histogram::bucketOf(Histogram::valueOf(bucket)), bucket);
  }
  CHECK_EQ(Histogram::bucketOf(63), 63u);
  CHECK_EQ(Histogram::bucketOf(64), 64u);
  CHECK_EQ(Histogram::bucketOf(128), 128u);
  CHECK_EQ(Histogram::bucketOf(130), 129u); // buckets of width two
  CHECK_EQ(Histogram::bucketOf(UINT64_MAX), Histogram::kBuckets - 1);
}

void quantilesAreWithinOnePercent() {
  Random random(7);
  const std::vector<std::function<double()>> distributions = {
      [&] { return std::uniform_real_distribution<>(100, kHourNs)(random); },
      [&] {
        const double low = std::log(100), high = std::log(kHourNs);
        return std::exp(std::uniform_real_distribution<>(low, high)(random));
      },
      [&] { return 1e3 + std::exponential_distribution<>(1e-6)(random); },
      [&] { return std::lognormal_distribution<>(13, 2)(random); },
      // Two modes: a fast and a slow network.
      [&] {
        const double mean = random() % 10 == 0 ? 5e8 : 2e5;
        return std::max(100., std::normal_distribution<>(mean, 1e4)(random));
      },
      [&] { return 12345.0; },
  };
  for (const auto& draw : distributions) {
    for (const size_t count : {1, 2, 99, 20'000}) {
      std::vector<uint64_t> values(count);
      std::generate(values.begin(), values.end(), [&] {
        return uint64_t(std::clamp(draw(), 100., kHourNs));
      });
      const Histogram histogram = histogramOf(values);
      std::sort(values.begin(), values.end());
      for (int permille = 0; permille <= 1000; ++permille) {
        const double q = permille / 1000.;
        const auto rank = size_t(std::ceil(q * double(count)));
        const double exact = double(values[std::max<size_t>(1, rank) - 1]);
        const double found = double(histogram.quantile(q));
        CHECK(std::abs(found - exact) <= 0.01 * exact);
      }
    }
  }
}

void countersAreExact() {
  const Histogram empty;
  CHECK_EQ(
      json(empty),
      "{\"count\":0,\"sum\":0,\"min\":0,\"max\":0,\"buckets\":[]}");
  CHECK_EQ(empty.quantile(0.5), 0u);
  const Histogram four = histogramOf({5, 1000, 1001, uint64_t(1) << 50});
  // 1000 = 125 * 8: shift 3, bucket 3 * 64 + 125 = 317.
  CHECK_EQ(
      json(four),
      "{\"count\":4,\"sum\":1125899906844630,\"min\":5,\"max\":"
      "1125899906842624,\"buckets\":[5,1,312,2,2050,1]}");
}

// Checks that parts, merged in any order and grouping, equal the whole.
void mergingIsAssociativeAndCommutative() {
  Random random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<uint64_t> all(500);
    std::vector<std::vector<uint64_t>> parts(1 + random() % 7);
    for (uint64_t& value : all) {
      value = random() >> (random() % 64);
      parts[random() % parts.size()].push_back(value);
    }
    std::vector<Histogram> unmerged;
    for (const auto& part : parts) {
      unmerged.push_back(histogramOf(part));
    }
    while (unmerged.size() > 1) { // a random pair, in a random direction
      std::shuffle(unmerged.begin(), unmerged.end(), random);
      const Histogram last = std::move(unmerged.back());
      unmerged.pop_back();
      unmerged.back().merge(last);
    }
    CHECK_EQ(json(unmerged[0]), json(histogramOf(all)));
  }
}

void printHistogram(const char* path) {
  std::ifstream file(path);
  Histogram histogram;
  for (uint64_t value = 0; file >> value;) {
    histogram.add(value);
  }
  std::printf("%s\n", json(histogram).c_str());
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 2) {
    printHistogram(argv[1]);
    return 0;
  }
  bucketsAreContiguousAndNarrow();
  quantilesAreWithinOnePercent();
  countersAreExact();
  mergingIsAssociativeAndCommutative();
  return check::report();
}
