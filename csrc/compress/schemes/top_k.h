// The values largest in magnitude, exactly, as binary16, with their places:
// 4 bytes each (kernels/linear/sparse.h). They go to everyone, or by way of
// owners (split_gather.h), or, where so many are asked for that all values as
// binary16 are fewer bytes, all go, by two phases: whichever sends least.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "compress/exchange/split_gather.h"
#include "compress/schemes/block_scheme.h"
#include "compress/schemes/scheme.h"
#include "kernels/topk/topk.h"

namespace commprof::compress {

// In fp32 smaller buckets cost less than what a scheme saves on them, and a
// share of them would be no value at all.
inline constexpr size_t kSmallestSparse = 4096; // values: 16 KiB

// Integer arithmetic, so that all ranks find the same. At least one, of n > 0.
inline size_t shareOf(size_t n, uint64_t parts_per_billion) {
  const uint64_t share = uint64_t(n) * parts_per_billion / 1'000'000'000;
  return std::clamp<size_t>(size_t(share), std::min<size_t>(n, 1), n);
}

class TopK : public Scheme {
 public:
  TopK(uint64_t ratio_ppb, size_t piece_bytes);

  uint32_t k(size_t n) const override;
  bool lossless(size_t n) const override;
  // Chooses, where it will not send all: the largest is among the chosen.
  Snapshot inspect(const Proposal& proposal) override;
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  // Without owners, who send less.
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

 private:
  // Sent to all others, k entries of 4 bytes exceed what two phases send.
  bool dense(size_t n, int world) const;
  bool maySplit(std::span<const Slot> slots, size_t n, int world) const;
  void choose(const Proposal& proposal);
  uint32_t largestChosen() const;
  void unchoose(Job& job);
  std::byte* encode(const Job& job);
  void sendToAll(Job& job);

  uint64_t ratio_ppb_;
  BlockScheme all_as_half_;
  SplitGather split_;
  Gather gather_;
  kernels::TopKScratch scratch_;
  bool chosen_ = false; // indices_ and values_, by the last inspect()
  std::vector<int32_t> indices_;
  std::vector<float> values_;
};

} // namespace commprof::compress
