#include "compress/schemes/plain_mean.h"

namespace commprof::compress {

void plainMean(const Bucket& bucket, Channel& channel) {
  {
    // A product and not a quotient: DDP multiplies while it copies into
    // buckets, and the bits shall be the same.
    StageTimer timer(channel.report(), Stage::kEncode);
    const auto factor = float(1.0 / channel.size());
    for (size_t i = 0; i < bucket.numel; ++i) {
      bucket.gradient[i] *= factor;
    }
  }
  channel.allReduceSum({bucket.gradient, bucket.numel}).wait();
  channel.report().payload_bytes += bucket.numel * sizeof(float);
}

} // namespace commprof::compress
