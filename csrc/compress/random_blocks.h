// A share of the blocks of 64 values, chosen anew for each bucket and step, the
// same on all ranks: no places on the wire, and an all-reduce can sum them.
//
// With error feedback they are sent as they are. Without it they are multiplied
// by blocks / chosen blocks, so that the expected value is the gradient
// (Wangni et al., 2018).
#pragma once

#include "compress/scheme.h"
#include "compress/scratch.h"

namespace commprof::compress {

class RandomBlocks : public Scheme {
 public:
  RandomBlocks(uint64_t ratio_ppb, uint64_t seed, bool feedback);

  uint32_t k(size_t n) const override; // blocks
  bool lossless(size_t n) const override;
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

 private:
  void choose(uint64_t signature, uint64_t step, size_t n);
  float gain(size_t n) const;

  uint64_t ratio_ppb_;
  uint64_t seed_;
  bool feedback_;
  std::vector<uint32_t> blocks_;
  Scratch packed_;
};

} // namespace commprof::compress
