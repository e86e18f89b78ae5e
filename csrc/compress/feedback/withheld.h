// Residuals that stay behind. A parameter that this rank's backward pass did
// not use has a gradient of zeros in the bucket. If no rank used it, DDP
// (find_unused_parameters, static_graph) leaves its .grad as it was and drops
// what the bucket brings, and a residual that had been sent would be lost.
// Whether another rank used it, no rank knows in time. So residuals of
// parameters whose gradients are all zero are put aside until there is another
// gradient to go with.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "compress/bucket.h"

namespace commprof::compress {

// Until it goes out of scope or putBack(), these residuals are zero.
class Withheld {
 public:
  // `residual` is laid out like the bucket; null: nothing happens.
  Withheld(const Bucket& bucket, float* residual);
  ~Withheld() {
    putBack();
  }
  Withheld(const Withheld&) = delete;
  Withheld& operator=(const Withheld&) = delete;

  // Another array has become the residual meanwhile.
  void moveTo(float* residual) {
    residual_ = residual;
  }
  // Adds them to what has become of their places meanwhile.
  void putBack();

 private:
  float* residual_;
  std::vector<std::pair<size_t, std::vector<float>>> aside_; // by offset
};

} // namespace commprof::compress
