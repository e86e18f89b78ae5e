#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "check.h"
#include "tune/kernels/level.h"

namespace kernel_cases {

inline constexpr size_t kSizes[] = {
    0,
    1,
    15,
    16,
    17,
    63,
    64,
    65,
    255,
    256,
    257,
    2047,
    2048,
    2049,
    4099,
    100003};

// The xorshift64* generator gives the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}

  uint32_t bits() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return uint32_t((state_ * 0x2545f4914f6cdd1dull) >> 32);
  }
  float uniform() {
    return float(int32_t(bits())) * 0x1p-31f;
  }

 private:
  uint64_t state_;
};

struct Pattern {
  const char* name;
  float (*value)(size_t i, Random& random);
};
inline const Pattern kPatterns[] = {
    {"zeros", [](size_t, Random&) { return 0.0f; }},
    {"constant", [](size_t, Random&) { return -0.37f; }},
    {"denormals", [](size_t, Random& r) { return r.uniform() * 0x1p-130f; }},
    {"near the smallest scale",
     [](size_t, Random& r) { return r.uniform() * 0x1p-119f; }},
    {"huge", [](size_t, Random& r) { return r.uniform() * 2e38f; }},
    {"alternating",
     [](size_t i, Random&) { return i % 2 == 0 ? 1e-3f : -1e-3f; }},
    {"signed zeros", [](size_t i, Random&) { return i % 3 ? -0.0f : 0.0f; }},
    {"one in a block",
     [](size_t i, Random&) { return i % 64 == 17 ? -2.5f : 0.0f; }},
    {"random", [](size_t, Random& r) { return r.uniform(); }},
    {"of many scales",
     [](size_t, Random& r) {
       return std::ldexp(r.uniform(), -int(r.bits() % 30));
     }},
};

inline std::vector<float> make(
    const Pattern& pattern,
    size_t n,
    uint64_t seed) {
  Random random(seed);
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    out[i] = pattern.value(i, random);
  }
  return out;
}

// The address sanitizer detects reads beyond the array, because the array ends
// where its memory ends. `offset` is a number of values.
template <class T>
class Input {
 public:
  Input(const std::vector<T>& values, size_t offset)
      : memory_(offset), offset_(offset) {
    memory_.insert(memory_.end(), values.begin(), values.end());
    memory_.shrink_to_fit();
  }
  const T* data() const {
    return memory_.data() + offset_;
  }

 private:
  std::vector<T> memory_;
  size_t offset_;
};

template <class T>
class Output {
 public:
  Output(size_t n, size_t offset)
      : memory_(kGuard + offset + n + kGuard), first_(kGuard + offset), n_(n) {
    std::memset(memory_.data(), 0xa5, memory_.size() * sizeof(T));
  }
  Output(const std::vector<T>& values, size_t offset)
      : Output(values.size(), offset) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() {
    return memory_.data() + first_;
  }
  std::vector<T> values() const {
    return {memory_.begin() + first_, memory_.begin() + first_ + n_};
  }
  bool guardsIntact() const {
    std::vector<unsigned char> bytes(memory_.size() * sizeof(T));
    std::memcpy(bytes.data(), memory_.data(), bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) {
      const size_t value = i / sizeof(T);
      if ((value < first_ || value >= first_ + n_) && bytes[i] != 0xa5) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  std::vector<T> memory_;
  size_t first_, n_;
};

struct Case {
  std::string name;
  size_t n = 0;
  size_t offset = 0;
  std::vector<float> x;
  std::vector<float> residual;
};

template <class Body>
void forEachCase(const Body& body) {
  for (const size_t n : kSizes) {
    for (const Pattern& pattern : kPatterns) {
      if (n > 10000 && &pattern != std::end(kPatterns) - 1) {
        continue;
      }
      Case c;
      c.n = n;
      c.offset = n % 4 == 0 ? 0 : n % 7;
      c.x = make(pattern, n, n + 1);
      c.residual = make(pattern, n, n + 2);
      for (float& value : c.residual) {
        value *= 0.25f;
      }
      c.name = std::to_string(n) + " " + pattern.name;
      body(c);
    }
  }
}

template <class Body>
void forEachLevel(const Body& body) {
  using namespace commprof::kernels;
  for (const Level level : availableLevels()) {
    setLevel(level);
    body(std::string(levelName(level)));
  }
}

inline void announceLevels() {
  using namespace commprof::kernels;
  const std::vector<Level> levels = availableLevels();
  for (const Level level : {Level::kScalar, Level::kAvx2, Level::kAvx512}) {
    const bool available =
        std::find(levels.begin(), levels.end(), level) != levels.end();
    std::printf(
        "%s: %s\n", levelName(level), available ? "run" : "NOT RUN HERE");
  }
}

template <class T>
void sameBits(
    const std::vector<T>& actual,
    const std::vector<T>& expected,
    const std::string& what,
    const char* file,
    int line) {
  if (actual.size() != expected.size()) {
    check::note(false, what + ": not the same length", file, line);
    return;
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0) {
      std::ostringstream text;
      text.precision(9);
      text << what << ": value " << i << " is " << +actual[i] << ", not "
           << +expected[i];
      check::note(false, text.str(), file, line);
      return;
    }
  }
  check::note(true, what, file, line);
}

} // namespace kernel_cases

#define CHECK_SAME_BITS(actual, expected, what) \
  kernel_cases::sameBits(actual, expected, what, __FILE__, __LINE__)
#define CHECK_AT(condition, what)          \
  check::note(                             \
      bool(condition),                     \
      std::string(what) + ": " #condition, \
      __FILE__,                            \
      __LINE__)
