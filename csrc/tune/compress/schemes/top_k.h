// Sends exactly the k values of largest magnitude, as binary16 with their
// places, 4 bytes each (kernels/linear/sparse.h). Uses the exchange that sends
// the fewest bytes: all choices go to all ranks; or owners sum the choices
// (split_gather.h); or, for large k, all values are sent as binary16 in two
// phases.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tune/compress/exchange/split_gather.h"
#include "tune/compress/schemes/block_scheme.h"
#include "tune/compress/schemes/scheme.h"
#include "tune/kernels/topk/topk.h"

namespace commprof::compress {

// Smaller buckets are sent in fp32, because choosing values would take more
// time than it saves.
inline constexpr size_t kSmallestSparse = 4096; // values: 16 KiB

// Number of values to send, equal on all ranks; at least one for n > 0.
inline size_t shareOf(size_t n, uint64_t parts_per_billion) {
  const uint64_t share = uint64_t(n) * parts_per_billion / 1'000'000'000;
  return std::clamp<size_t>(size_t(share), std::min<size_t>(n, 1), n);
}

class TopK : public Scheme {
 public:
  TopK(uint64_t ratio_ppb, size_t piece_bytes);

  uint32_t k(size_t n) const override;
  bool lossless(size_t n) const override;
  // Chooses the values to send, unless all values will be sent. The result
  // holds the bit pattern of the largest chosen value.
  Snapshot inspect(const Proposal& proposal) override;
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  // An upper bound, because the exchange of split_gather.h may send fewer
  // bytes.
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

 private:
  // True if an exchange of all values as binary16 takes no more bytes than
  // sending k values to all other ranks.
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
  bool chosen_ = false; // the last inspect() set indices_ and values_
  std::vector<int32_t> indices_;
  std::vector<float> values_;
};

} // namespace commprof::compress
