#include "always_on/summary/histogram.h"

#include <algorithm>
#include <cstring>
#include <fstream>
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

void bucketsAreContiguousAndNarrow() {
  uint32_t last = 0;
  for (double x = 0; x < kHourNs; x = x * 1.003 + 1) {
    const auto ns = uint64_t(x);
    const uint32_t bucket = Histogram::bucketOf(ns);
    CHECK(bucket >= last && bucket < Histogram::kBuckets);
    CHECK(bucket - last <= 2);
    last = bucket;
    CHECK(Histogram::bucketOf(ns + ns / 64 + 1) > bucket);
  }
  CHECK_EQ(Histogram::bucketOf(63), 63u);
  CHECK_EQ(Histogram::bucketOf(64), 64u);
  CHECK_EQ(Histogram::bucketOf(128), 128u);
  CHECK_EQ(Histogram::bucketOf(130), 129u);
  CHECK_EQ(Histogram::bucketOf(UINT64_MAX), Histogram::kBuckets - 1);
}

void countersAreExact() {
  const Histogram empty;
  CHECK_EQ(
      json(empty),
      "{\"count\":0,\"sum\":0,\"min\":0,\"max\":0,\"buckets\":[]}");
  const Histogram four = histogramOf({5, 1000, 1001, uint64_t(1) << 50});
  // The value 1000 is 8 * 125, so its bucket is 3 * 64 + 125 = 317. The JSON
  // has 312, the distance from bucket 5.
  CHECK_EQ(
      json(four),
      "{\"count\":4,\"sum\":1125899906844630,\"min\":5,\"max\":"
      "1125899906842624,\"buckets\":[5,1,312,2,2050,1]}");
}

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
    while (unmerged.size() > 1) {
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
  countersAreExact();
  mergingIsAssociativeAndCommutative();
  return check::report();
}
