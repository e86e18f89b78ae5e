#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinite = std::numeric_limits<float>::infinity();

inline uint32_t bitsOf(float x) {
  return std::bit_cast<uint32_t>(x);
}

struct Data {
  std::string name;
  std::vector<float> x;
};

// The values have 12 scales from 1e-5 to 1e-2, like the layers of a model.
class Mixed {
 public:
  explicit Mixed(size_t n) : n_(n) {
    for (int i = 0; i < 12; ++i) {
      scales_[i] = std::pow(10.0f, -5.0f + 3.0f * float(i) / 11.0f);
    }
  }
  float operator()(std::mt19937& random, size_t i) {
    return normal_(random) * scales_[i * 12 / n_];
  }

 private:
  size_t n_;
  float scales_[12];
  std::normal_distribution<float> normal_;
};

inline std::vector<Data> arrays(size_t n) {
  std::mt19937 random(uint32_t(n) + 7);
  Mixed mixed(n);
  const auto make = [&](const char* name, auto value) {
    Data data{name, std::vector<float>(n)};
    for (size_t i = 0; i < n; ++i) {
      data.x[i] = value(i);
    }
    return data;
  };
  const float step = 1.0f / float(n + 1);
  return {
      make("zeros", [](size_t i) { return i % 3 == 0 ? -0.0f : 0.0f; }),
      make("constant", [](size_t i) { return i % 2 == 0 ? 1.5f : -1.5f; }),
      make("ties", [&](size_t) { return float(int(random() % 5) - 2); }),
      make(
          "denormals",
          [&](size_t) {
            return std::bit_cast<float>(uint32_t(random()) & 0x807fffffu);
          }),
      make(
          "any bits",
          [&](size_t) { return std::bit_cast<float>(uint32_t(random())); }),
      make(
          "NaN",
          [&](size_t i) {
            return random() % 9 == 0 ? kNan : mixed(random, i);
          }),
      make(
          "Inf",
          [&](size_t i) {
            return random() % 7 == 0 ? (i % 2 == 0 ? kInfinite : -kInfinite)
                                     : mixed(random, i);
          }),
      make("ascending", [&](size_t i) { return float(i + 1) * step; }),
      make("descending", [&](size_t i) { return -float(n - i) * step; }),
      make(
          "one huge",
          [&](size_t i) { return i == n * 2 / 3 ? -1e30f : mixed(random, i); }),
      make("mixed", [&](size_t i) { return mixed(random, i); }),
      // Most samples miss the few large values.
      make("hidden", [&](size_t i) {
        return i > n / 2 && i < n / 2 + 40 ? 1.0f + float(i) * step
                                           : 1e-6f * float(i % 17);
      })};
}

inline std::vector<int32_t> stableOrder(const std::vector<float>& x) {
  std::vector<int32_t> order(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    order[i] = int32_t(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return (bitsOf(x[size_t(a)]) & 0x7fffffffu) >
        (bitsOf(x[size_t(b)]) & 0x7fffffffu);
  });
  return order;
}

} // namespace
