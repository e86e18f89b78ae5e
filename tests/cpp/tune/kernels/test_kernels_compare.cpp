#include <limits>

#include "kernel_cases.h"
#include "tune/kernels/linear/compare.h"
#include "tune/kernels/parallel.h"

using namespace commprof::kernels;
using namespace kernel_cases;

namespace {

uint32_t bitsOf(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}

uint32_t largestBits(const std::vector<float>& x) {
  uint32_t out = 0;
  for (const float value : x) {
    out = std::max(out, bitsOf(value) & 0x7fffffffu);
  }
  return out;
}

void checkLargestMagnitude(const Case& c) {
  std::vector<float> sums = c.x;
  for (size_t i = 0; i < c.n; ++i) {
    sums[i] += c.residual[i];
  }
  const Input<float> x(c.x, c.offset), y(c.residual, c.offset);
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + c.name;
    CHECK_AT(maxAbsBits(x.data(), c.n) == largestBits(c.x), what);
    CHECK_AT(
        maxAbsBitsOfSum(x.data(), y.data(), c.n) == largestBits(sums), what);
  });
}

void aSingleNonfiniteValueIsFound() {
  const float values[] = {
      INFINITY, -INFINITY, NAN, -NAN, std::numeric_limits<float>::max()};
  for (const size_t n : {1, 16, 37, 1000}) {
    for (const size_t at : {size_t(0), n / 2, n - 1}) {
      for (const float value : values) {
        std::vector<float> x(n, 1.0f), y(n, 0.0f);
        x[at] = value;
        const uint32_t expected = bitsOf(value) & 0x7fffffffu;
        forEachLevel([&](const std::string&) {
          CHECK_EQ(maxAbsBits(x.data(), n), expected);
          CHECK_EQ(maxAbsBitsOfSum(x.data(), y.data(), n), expected);
          CHECK_EQ(
              maxAbsBits(x.data(), n) >= kInfinityBits, !std::isfinite(value));
        });
      }
    }
  }
}

void anOverflowingSumIsFound() {
  std::vector<float> x(100, 1.0f), y(100, 1.0f);
  x[70] = y[70] = 3e38f;
  forEachLevel([&](const std::string&) {
    CHECK(maxAbsBits(x.data(), 100) < kInfinityBits);
    CHECK_EQ(maxAbsBitsOfSum(x.data(), y.data(), 100), kInfinityBits);
  });
}

Comparison referenceComparison(
    const std::vector<float>& a,
    const std::vector<float>& b) {
  Comparison out;
  for (size_t i = 0; i < a.size(); ++i) {
    const double wanted = a[i], sent = b[i];
    out.wanted_norm2 += wanted * wanted;
    out.sent_norm2 += sent * sent;
    out.dot += wanted * sent;
    out.error_norm2 += (wanted - sent) * (wanted - sent);
    out.zeroed += wanted != 0 && sent == 0;
  }
  return out;
}

void checkNear(
    double actual,
    double expected,
    double size,
    const std::string& what) {
  // Rounding errors are relative to `size`, the sum of the terms' magnitudes.
  CHECK_AT(std::fabs(actual - expected) <= 1e-12 * size, what);
}

void checkComparison(const Case& c) {
  std::vector<float> sent = c.x;
  for (size_t i = 0; i < c.n; ++i) {
    sent[i] = i % 5 == 0 ? 0.0f : i % 5 == 1 ? -0.0f : c.residual[i];
  }
  const Comparison expected = referenceComparison(c.x, sent);
  const Input<float> x(c.x, c.offset), y(sent, c.offset);
  Comparison first;
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + c.name;
    const Comparison out = compare(x.data(), y.data(), c.n);
    checkNear(
        out.wanted_norm2, expected.wanted_norm2, expected.wanted_norm2, what);
    checkNear(out.sent_norm2, expected.sent_norm2, expected.sent_norm2, what);
    checkNear(
        out.error_norm2, expected.error_norm2, expected.error_norm2, what);
    checkNear(
        out.dot,
        expected.dot,
        std::sqrt(expected.wanted_norm2 * expected.sent_norm2),
        what);
    CHECK_AT(out.zeroed == expected.zeroed, what);
    if (level == "scalar") {
      first = out;
    }
    CHECK_AT(std::memcmp(&out, &first, sizeof out) == 0, what);
  });
}

void everyPieceOfALongArrayCounts() {
  Case c;
  c.n = 2 * kGrain + 5;
  c.name = "several pieces";
  c.x = make(kPatterns[9], c.n, 1);
  c.residual = make(kPatterns[8], c.n, 2);
  checkComparison(c);
  for (const size_t at : {size_t(0), c.n - 1}) {
    c.x[at] = 1e9f;
    checkLargestMagnitude(c);
    c.x[at] = 0;
  }
}

} // namespace

int main() {
  announceLevels();
  forEachCase([](const Case& c) {
    checkLargestMagnitude(c);
    checkComparison(c);
  });
  everyPieceOfALongArrayCounts();
  aSingleNonfiniteValueIsFound();
  anOverflowingSumIsFound();
  return check::report();
}
