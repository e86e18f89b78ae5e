// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). The random bits depend only on key and counter, so
// ranks generate the same bits without communication.
#pragma once

#include <array>
#include <cstdint>

namespace commprof::kernels {

using PhiloxBlock = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t(counter[0]) * 0xd2511f53u;
    const uint64_t odd = uint64_t(counter[2]) * 0xcd9e8d57u;
    counter = {
        uint32_t(odd >> 32) ^ counter[1] ^ key[0],
        uint32_t(odd),
        uint32_t(even >> 32) ^ counter[3] ^ key[1],
        uint32_t(even)};
    key = {key[0] + 0x9e3779b9u, key[1] + 0xbb67ae85u};
  }
  return counter;
}

// A sequence of random words that depends only on a seed and a counter.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, uint64_t counter)
      : key_{uint32_t(seed), uint32_t(seed >> 32)}, counter_(counter) {}

  uint32_t next() {
    if (left_ == 0) {
      words_ = philox(
          {uint32_t(blocks_),
           uint32_t(blocks_ >> 32),
           uint32_t(counter_),
           uint32_t(counter_ >> 32)},
          key_);
      ++blocks_;
      left_ = 4;
    }
    return words_[4 - left_--];
  }

 private:
  PhiloxKey key_;
  uint64_t counter_;
  uint64_t blocks_ = 0;
  PhiloxBlock words_{};
  int left_ = 0;
};

} // namespace commprof::kernels
