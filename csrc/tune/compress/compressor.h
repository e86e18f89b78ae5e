// Compressor of one model's gradients. The ranks exchange buckets in fewer
// bytes, and all ranks get the same mean.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tune/compress/bucket.h"
#include "tune/compress/exchange/transport.h"

namespace commprof::compress {

// Scheme and options, such as "topk" with {"ratio": 0.01}. scheme_table.h lists
// all schemes and options. commprof/tune/compressors validates them.
struct Options {
  std::string scheme;
  std::map<std::string, double> values;
  uint64_t seed = 0; // seed of PowerSGD's first Q; the same on all ranks
  uint32_t measure_every = 0; // measure quality in every n-th step; 0: never
  // Approximate encoded size of a piece. Encoding the next piece overlaps with
  // sending this one.
  size_t piece_bytes = size_t(1) << 20;
};

// Thrown if ranks disagree on what they exchange. what() names the rank, the
// bucket, the field and both values.
class DisagreementError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Thrown if a payload is damaged. what() names rank, bucket and defect.
class PayloadError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// State of one parameter: its error-feedback residual or its PowerSGD factor.
struct ParameterState {
  uint32_t parameter = 0;
  std::string kind; // "residual" or "q"
  std::vector<float> values;
};

// Not thread-safe. All ranks must call run() for the same buckets in the same
// order.
class Compressor {
 public:
  virtual ~Compressor() = default;

  // Throws std::invalid_argument for an unknown scheme.
  static std::unique_ptr<Compressor> make(const Options& options);

  // Exchanges the bucket; blocks. If any rank's gradients are not finite, or
  // exceed 2^80, the bucket becomes NaN on all ranks and all state stays
  // unchanged. The scheme "none" averages such values instead, as DDP does. So
  // does a scheme without error feedback, for buckets that it does not
  // compress. If run() throws, the bucket is undefined and the compressor must
  // not be used again.
  virtual void run(
      const Bucket& bucket,
      Transport& transport,
      BucketReport& report) = 0;

  // Average number of bytes that a rank sends to others for a bucket of these
  // slots, without checksums; see BucketReport::wire_bytes. An upper bound for
  // "topk". Headers of uncompressed buckets without error feedback, as with
  // "none", do not count.
  virtual uint64_t wireBytes(std::span<const Slot> slots, int world) const = 0;

  // Removes and returns this parameter's residual, because another rank of this
  // host exchanges the parameter. Returns an empty vector if there is no
  // residual, or the gradient is all zero (see residuals.h). Call it before the
  // bucket's run(). putBack() restores the residual.
  virtual std::vector<float> takeResidual(
      const Bucket& bucket,
      const Slot& slot) = 0;
  virtual void putBack(const Slot& slot, std::vector<float> residual) = 0;

  // Call both between steps. load() replaces all state and throws
  // std::invalid_argument for unknown kinds.
  virtual std::vector<ParameterState> state() const = 0;
  virtual void load(const std::vector<ParameterState>& state) = 0;

  // Multiplies the residuals by the factor by which the loss scale changed.
  virtual void scaleResiduals(float factor) = 0;
  // Adds the values that were sent in this step to the residuals again, because
  // GradScaler skipped the step. Call it before the next step's first run(),
  // before or after scaleResiduals(). Does nothing without error feedback.
  virtual void stepSkipped() = 0;
};

} // namespace commprof::compress
