#include "kernels/random_k.h"

#include <algorithm>
#include <bit>

#include "kernels/parallel.h"
#include "kernels/philox.h"
#include "kernels/random_k_table.h"

namespace commprof::kernels {

namespace {

// One bit per block.
class BlockSet {
 public:
  explicit BlockSet(size_t blocks) : words_((blocks + 63) / 64) {}

  // False where it was there.
  bool insert(size_t block) {
    uint64_t& word = words_[block / 64];
    const uint64_t bit = uint64_t(1) << (block % 64);
    const bool fresh = (word & bit) == 0;
    word |= bit;
    return fresh;
  }

  void appendTo(std::vector<uint32_t>& out) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t word = words_[i]; word != 0; word &= word - 1) {
        out.push_back(uint32_t(i * 64 + size_t(std::countr_zero(word))));
      }
    }
  }

 private:
  std::vector<uint64_t> words_;
};

// Those of `blocks` that begin in [begin, end).
ChosenBlocks within(
    const std::vector<uint32_t>& blocks,
    size_t begin,
    size_t end) {
  const auto starts_before = [](uint32_t block, size_t value) {
    return size_t(block) * kRandomBlock < value;
  };
  const auto first =
      std::lower_bound(blocks.begin(), blocks.end(), begin, starts_before);
  const auto last = std::lower_bound(first, blocks.end(), end, starts_before);
  return {blocks.data() + (first - blocks.begin()), size_t(last - first)};
}

} // namespace

void chooseBlocks(
    uint64_t seed,
    uint64_t counter,
    size_t n,
    size_t count,
    std::vector<uint32_t>& blocks) {
  const size_t all = (n + kRandomBlock - 1) / kRandomBlock;
  count = std::min(count, all);
  // Floyd's sampling (Bentley and Floyd, Communications of the ACM, 1987): one
  // draw for each block chosen.
  PhiloxStream stream(seed, counter);
  BlockSet chosen(all);
  for (size_t i = all - count; i < all; ++i) {
    if (!chosen.insert(stream.below(uint32_t(i + 1)))) {
      chosen.insert(i);
    }
  }
  blocks.clear();
  blocks.reserve(count);
  chosen.appendTo(blocks);
}

void gatherBlocks(
    const float* x,
    float* residual,
    size_t n,
    const std::vector<uint32_t>& blocks,
    float* packed) {
  const auto& kernels = COMMPROF_PICK(randomKTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    const ChosenBlocks here = within(blocks, begin, end);
    float* to = packed + size_t(here.first - blocks.data()) * kRandomBlock;
    kernels.gather(x, residual, begin, end, here, to);
  });
}

void scatterBlocks(
    const float* packed,
    size_t n,
    const std::vector<uint32_t>& blocks,
    float factor,
    float* out) {
  const auto& kernels = COMMPROF_PICK(randomKTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    const ChosenBlocks here = within(blocks, begin, end);
    const size_t place = size_t(here.first - blocks.data());
    kernels.scatter(
        packed + place * kRandomBlock, begin, end, here, factor, out);
  });
}

} // namespace commprof::kernels
