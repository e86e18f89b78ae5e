#include "tune/kernels/linear/sparse.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "kernel_levels.h"
#include "tune/kernels/simd/half.h"

using namespace commprof::kernels;

namespace {

constexpr size_t kGuards = 64;
constexpr uint8_t kGuard = 0xa5;

struct Chosen {
  Chosen(size_t n, size_t k, uint32_t seed) : n(n), values(k) {
    std::mt19937 random(seed);
    std::vector<int32_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    std::sample(
        all.begin(), all.end(), std::back_inserter(indices), long(k), random);
    std::normal_distribution<float> normal(0.0f, 1e-4f);
    for (float& value : values) {
      value = normal(random);
    }
  }

  std::vector<uint8_t> encode(float scale, float* residual, size_t skip = 0)
      const {
    const size_t size = sparseBytes(n, indices.size());
    std::vector<uint8_t> out(skip + size + kGuards, kGuard);
    encodeSparse(
        indices.data(),
        values.data(),
        indices.size(),
        n,
        scale,
        residual,
        out.data() + skip);
    for (size_t i = skip + size; i < out.size(); ++i) {
      CHECK_EQ(int(out[i]), int(kGuard));
    }
    return {out.begin() + long(skip), out.begin() + long(skip + size)};
  }

  size_t n;
  std::vector<int32_t> indices;
  std::vector<float> values;
};

struct Shape {
  size_t n, k;
};

std::vector<Shape> shapes() {
  return {
      {0, 0},
      {1, 0},
      {1, 1},
      {15, 7},
      {16, 16},
      {17, 17},
      {1000, 33},
      {65535, 655},
      {65536, 65536},
      {65537, 65537},
      {131072, 1},
      {200000, 2000},
      {300001, 30000}};
}

void testLayout() {
  // The three parts have the places {1, 65535}, {0} and none. In binary16, 1.0
  // is 0x3c00 and -2.0 is 0xc000.
  const int32_t indices[] = {1, 65535, 65536};
  const float values[] = {0.5f, -1.0f, 0.25f};
  const size_t n = 2 * 65536 + 5;
  alignas(2) uint8_t out[sparseBytes(2 * 65536 + 5, 3)];
  encodeSparse(indices, values, 3, n, 2.0f, nullptr, out);
  const uint8_t expected[] = {2, 0, 0, 0,    1, 0,    0,    0,
                              0, 0, 0, 0,    1, 0,    0xff, 0xff,
                              0, 0, 0, 0x3c, 0, 0xc0, 0,    0x38};
  CHECK_EQ(sizeof out, sizeof expected);
  CHECK(std::memcmp(out, expected, sizeof expected) == 0);
}

void testRoundTrip(const Shape& shape, float scale) {
  const Chosen chosen(shape.n, shape.k, uint32_t(shape.n + shape.k));
  std::vector<float> residual(shape.n, 7.0f), wanted(shape.n);
  const std::vector<uint8_t> bytes = chosen.encode(scale, residual.data());
  CHECK_EQ(bytes.size(), sparseBytes(shape.n, shape.k));
  CHECK(validSparse(bytes.data(), shape.n, shape.k));
  CHECK(chosen.encode(scale, nullptr, 2) == bytes);

  std::vector<float> dense(shape.n, 0.5f);
  addSparse(bytes.data(), shape.n, shape.k, 3.0f, dense.data());
  std::vector<float> expected(shape.n, 0.5f), left(shape.n, 7.0f);
  for (size_t j = 0; j < shape.k; ++j) {
    const size_t at = size_t(chosen.indices[j]);
    const float value = chosen.values[j];
    const float half = floatFromHalf(halfFromFloat(value * scale));
    expected[at] += half * 3.0f;
    left[at] = value - half * (1.0f / scale);
    // Denormal values of binary16 are 2^-24 apart.
    const float bound = std::max(std::fabs(value) * 0x1p-11f, 0x1p-25f / scale);
    CHECK(std::fabs(left[at]) <= bound);
  }
  CHECK(dense == expected);
  CHECK(residual == left);
}

template <class Damage>
void checkDamageIsRejected(const Shape& shape, Damage damage) {
  std::vector<uint8_t> bytes =
      Chosen(shape.n, shape.k, 3).encode(1.0f, nullptr);
  CHECK(validSparse(bytes.data(), shape.n, shape.k));
  damage(bytes);
  CHECK(!validSparse(bytes.data(), shape.n, shape.k));
}

void setCount(std::vector<uint8_t>& bytes, size_t part, uint32_t count) {
  std::memcpy(bytes.data() + part * 4, &count, 4);
}

void testDamagedEncodings() {
  const Shape shape{100000, 1000};
  const size_t offsets = 8;
  checkDamageIsRejected(shape, [](auto& bytes) { setCount(bytes, 0, 1001); });
  checkDamageIsRejected(
      shape, [](auto& bytes) { setCount(bytes, 1, 0xffffffffu); });
  checkDamageIsRejected(
      shape, [](auto& bytes) { bytes[0] ^= 1; }); // The count changes by 1.
  checkDamageIsRejected(shape, [](auto& bytes) {
    setCount(bytes, 0, 0);
    setCount(bytes, 1, 0);
  });
  for (const size_t place : {0, 1, 15, 16, 17, 300, 598}) {
    checkDamageIsRejected(
        shape, [&](auto& bytes) { // The next offset is repeated.
          uint8_t* at = bytes.data() + offsets + 2 * place;
          std::memcpy(at, at + 2, 2);
        });
    checkDamageIsRejected(shape, [&](auto& bytes) {
      uint8_t* at = bytes.data() + offsets + 2 * place;
      std::swap(at[0], at[2]);
      std::swap(at[1], at[3]);
    });
  }
  // The last part has 34,464 places, so 34,463 is the largest valid offset.
  checkDamageIsRejected(shape, [&](auto& bytes) {
    const uint16_t beyond = 100000 - 65536;
    std::memcpy(bytes.data() + offsets + 2 * 999, &beyond, 2);
  });
}

// Sanitizers detect accesses beyond the exact allocations. Without sanitizers,
// the zeros after the array detect writes.
void addIfValid(const std::vector<uint8_t>& bytes, const Shape& shape) {
  const auto exact = std::make_unique<uint8_t[]>(bytes.size());
  std::memcpy(exact.get(), bytes.data(), bytes.size());
  if (!validSparse(exact.get(), shape.n, shape.k)) {
    return;
  }
  std::vector<float> dense(shape.n + kGuards, 0.0f);
  addSparse(exact.get(), shape.n, shape.k, 1.0f, dense.data());
  for (size_t i = shape.n; i < dense.size(); ++i) {
    CHECK_EQ(dense[i], 0.0f);
  }
  const auto tight = std::make_unique<float[]>(shape.n);
  addSparse(exact.get(), shape.n, shape.k, 1.0f, tight.get());
}

void testRandomDamageStaysInBounds() {
  std::mt19937 random(11);
  const Shape small[] = {{5, 3}, {40, 40}, {70000, 20}, {131073, 50}};
  for (const Shape& shape : small) {
    const std::vector<uint8_t> good =
        Chosen(shape.n, shape.k, 9).encode(1.0f, nullptr);
    for (int round = 0; round < 500; ++round) {
      std::vector<uint8_t> bytes = good;
      for (uint32_t flips = random() % 4 + 1; flips > 0; --flips) {
        bytes[random() % bytes.size()] ^= uint8_t(1u << random() % 8);
      }
      addIfValid(bytes, shape);
      for (uint8_t& byte : bytes) {
        byte = uint8_t(random());
      }
      addIfValid(bytes, shape);
    }
  }
}

void testNotFinite() {
  const int32_t indices[] = {0, 1, 2};
  const float values[] = {
      std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN(),
      1e30f};
  alignas(2) uint8_t bytes[sparseBytes(3, 3)];
  encodeSparse(indices, values, 3, 3, 1.0f, nullptr, bytes);
  CHECK(validSparse(bytes, 3, 3));
  float dense[3] = {};
  addSparse(bytes, 3, 3, 1.0f, dense);
  CHECK(std::isinf(dense[0]));
  CHECK(std::isnan(dense[1]));
  CHECK(std::isinf(dense[2])); // 1e30 is too large for binary16.
}

void testAll() {
  testLayout();
  for (const Shape& shape : shapes()) {
    testRoundTrip(shape, 1.0f);
    testRoundTrip(shape, 0x1p12f);
  }
  testDamagedEncodings();
  testRandomDamageStaysInBounds();
  testNotFinite();
}

} // namespace

int main() {
  check::atEachLevel(testAll);
  return check::report();
}
