// The values largest in magnitude, exactly, as binary16, with their places:
// 4 bytes each (kernels/sparse.h). Where so many are asked for that all values
// as binary16 are fewer bytes, those are sent, by two phases.
#pragma once

#include "compress/gather.h"
#include "compress/scheme.h"
#include "compress/two_phase.h"
#include "kernels/topk.h"

namespace commprof::compress {

class TopK : public Scheme {
 public:
  TopK(uint64_t ratio_ppb, size_t piece_bytes);

  uint32_t k(size_t n) const override;
  bool lossless(size_t n) const override;
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

 private:
  // Sent to all others, k entries of 4 bytes exceed what two phases send.
  bool dense(size_t n, int world) const;
  void encode(const Job& job, std::byte* out);

  uint64_t ratio_ppb_;
  TwoPhase all_as_half_;
  Gather gather_;
  kernels::TopKScratch scratch_;
  std::vector<int32_t> indices_;
  std::vector<float> values_;
};

} // namespace commprof::compress
