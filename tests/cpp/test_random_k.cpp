#include "kernels/random_k.h"

#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "kernel_levels.h"
#include "kernels/parallel.h"
#include "kernels/philox.h"

using namespace commprof::kernels;

namespace {

// Known answers of the authors' Random123 distribution (kat_vectors).
void testPhilox() {
  constexpr uint32_t kOnes = 0xffffffffu;
  CHECK(
      (philox({0, 0, 0, 0}, {0, 0}) ==
       PhiloxBlock{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  CHECK(
      (philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
       PhiloxBlock{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  CHECK(
      (philox(
           {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
           {0xa4093822u, 0x299f31d0u}) ==
       PhiloxBlock{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

std::vector<uint32_t> choose(
    uint64_t seed,
    uint64_t counter,
    size_t n,
    size_t count) {
  std::vector<uint32_t> blocks{99}; // what was there before goes
  chooseBlocks(seed, counter, n, count, blocks);
  return blocks;
}

void testChoice() {
  for (const size_t n : {0, 1, 63, 64, 65, 640, 6400, 100003}) {
    const size_t all = (n + 63) / 64;
    for (const size_t count :
         {size_t(0), size_t(1), all / 100, all / 2, all, all + 5}) {
      const std::vector<uint32_t> blocks = choose(1, 2, n, count);
      CHECK_EQ(blocks.size(), std::min(count, all));
      CHECK(std::is_sorted(blocks.begin(), blocks.end()));
      CHECK(std::adjacent_find(blocks.begin(), blocks.end()) == blocks.end());
      CHECK(blocks.empty() || blocks.back() < all);
    }
  }
}

// Must never change: ranks of different versions would mix different places.
void testChoiceIsFixed() {
  const size_t n = 64 * 1000;
  CHECK((choose(7, 0, n, 5) == std::vector<uint32_t>{85, 113, 406, 747, 950}));
  CHECK((choose(7, 1, n, 5) == std::vector<uint32_t>{171, 225, 310, 493, 887}));
  CHECK(
      (choose(uint64_t(1) << 40, uint64_t(1) << 50, n, 5) ==
       std::vector<uint32_t>{2, 392, 488, 650, 808}));
  CHECK(choose(7, 3, n, 500) == choose(7, 3, n, 500));
  CHECK(choose(7, 3, n, 500) != choose(8, 3, n, 500));
  CHECK(choose(7, 3, n, 500) != choose(7, 4, n, 500));
}

// Each block equally often, and each pair of neighbours.
void testUniform() {
  constexpr size_t kBlocks = 50, kChosen = 10;
  constexpr int kRounds = 20000;
  std::vector<double> alone(kBlocks), pairs(kBlocks);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<bool> there(kBlocks);
    for (const uint32_t block :
         choose(42, uint64_t(round), kBlocks * 64, kChosen)) {
      there[block] = true;
    }
    for (size_t i = 0; i < kBlocks; ++i) {
      alone[i] += there[i];
      pairs[i] += there[i] && there[(i + 1) % kBlocks];
    }
  }
  const auto chiSquare = [](const std::vector<double>& seen, double share) {
    const double expected = kRounds * share;
    double sum = 0;
    for (const double count : seen) {
      sum += (count - expected) * (count - expected) / expected;
    }
    return sum / (1 - share); // each count is binomial, not Poisson
  };
  const double share = double(kChosen) / kBlocks;
  // 49 degrees of freedom: 85.4 is exceeded once in 1000, 23.9 undercut so.
  const double single = chiSquare(alone, share);
  CHECK(single > 23.9 && single < 85.4);
  // Pairs overlap, so their counts are not quite independent; a bias of 5 % in
  // any one would still show.
  const double paired = chiSquare(pairs, share * (kChosen - 1) / (kBlocks - 1));
  CHECK(paired > 15.0 && paired < 110.0);
}

struct Arrays {
  explicit Arrays(size_t n) : x(n), residual(n) {
    std::mt19937 random(uint32_t(n) + 1);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; ++i) {
      x[i] = normal(random);
      residual[i] = normal(random);
    }
  }

  std::vector<float> x, residual;
};

void testGatherScatter(size_t n, size_t count) {
  constexpr size_t kGuards = 64;
  const std::vector<uint32_t> blocks = choose(3, n, n, count);
  const Arrays arrays(n);
  const size_t size = blocks.size() * kRandomBlock;
  std::vector<float> plain(size + kGuards, 7.0f), fused = plain;
  gatherBlocks(arrays.x.data(), nullptr, n, blocks, plain.data());
  std::vector<float> residual = arrays.residual;
  residual.resize(n + kGuards, 7.0f);
  gatherBlocks(arrays.x.data(), residual.data(), n, blocks, fused.data());
  std::vector<float> out(n + kGuards, 7.0f);
  scatterBlocks(fused.data(), n, blocks, 0.5f, out.data());

  std::vector<float> left(n + kGuards, 7.0f), expected_out = left;
  std::vector<float> expected_plain(size + kGuards, 7.0f);
  std::vector<float> expected_fused = expected_plain;
  for (size_t i = 0; i < n; ++i) {
    left[i] = arrays.x[i] + arrays.residual[i];
    expected_out[i] = 0.0f;
  }
  for (size_t j = 0; j < size; ++j) {
    const size_t i = blocks[j / 64] * size_t(64) + j % 64;
    expected_plain[j] = i < n ? arrays.x[i] : 0.0f;
    expected_fused[j] = i < n ? left[i] : 0.0f;
    if (i < n) {
      expected_out[i] = left[i] * 0.5f;
      left[i] = 0.0f;
    }
  }
  CHECK(plain == expected_plain);
  CHECK(fused == expected_fused);
  CHECK(residual == left);
  CHECK(out == expected_out);
}

void testKernels() {
  for (const size_t n :
       {0, 1, 15, 16, 17, 63, 64, 65, 127, 4099, 65537, 300001, 600000}) {
    const size_t all = (n + 63) / 64;
    for (const size_t count : {size_t(0), size_t(1), all / 100, all / 3, all}) {
      testGatherScatter(n, count);
    }
  }
}

} // namespace

int main() {
  testPhilox();
  testChoice();
  testChoiceIsFixed();
  testUniform();
  check::atEachLevel(testKernels);
  setThreads(3);
  testKernels();
  return check::report();
}
