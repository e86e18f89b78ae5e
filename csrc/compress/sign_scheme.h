// One bit a value and the mean magnitude of each 2048 (kernels/sign.h).
#pragma once

#include "compress/gather.h"
#include "compress/scheme.h"

namespace commprof::compress {

class Sign : public Scheme {
 public:
  bool lossless(size_t n) const override;
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

 private:
  Gather gather_;
};

} // namespace commprof::compress
