// How well a scheme renders this rank's own gradients: what a BucketReport says
// of it.
#pragma once

#include "compress/bucket.h"
#include "compress/schemes/scheme.h"
#include "compress/scratch.h"

namespace commprof::compress {

class Quality {
 public:
  // Before the scheme looks: copies gradient + residual, which may be null.
  void begin(const Bucket& bucket, const float* residual);
  // After: compares with what was sent.
  void finish(const Job& job, Scheme& scheme);

 private:
  Scratch wanted_, sent_;
  double gradient_norm2_ = 0;
};

} // namespace commprof::compress
