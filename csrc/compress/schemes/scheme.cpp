#include "compress/schemes/scheme.h"

#include "kernels/linear/compare.h"

namespace commprof::compress {

Look Scheme::look(const Draft& draft) {
  StageTimer timer(draft.report, Stage::kEncode);
  return {largestBits(draft.bucket, draft.residual)};
}

uint32_t largestBits(const Bucket& bucket, const float* residual) {
  return residual == nullptr
      ? kernels::maxAbsBits(bucket.gradient, bucket.numel)
      : kernels::maxAbsBitsOfSum(bucket.gradient, residual, bucket.numel);
}

} // namespace commprof::compress
