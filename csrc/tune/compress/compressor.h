// Compressor of one model: exchanges buckets of local gradients with the other
// ranks in fewer bytes and leaves the same mean on every rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tune/compress/bucket.h"
#include "tune/compress/exchange/transport.h"

namespace commprof::compress {

// Scheme and options as on the command line: "topk" with {"ratio": 0.01}.
// scheme_table.h lists schemes and options; commprof/tune/compressors has
// validated the ones given here.
struct Options {
  std::string scheme;
  std::map<std::string, double> values;
  uint64_t seed = 0; // seed of PowerSGD's first Q; the same on all ranks
  uint32_t measure_every = 0; // measure quality in every n-th step; 0: never
  // Approximate encoded size of a piece: large enough to saturate a link, small
  // enough that encoding the next piece overlaps with sending.
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
  // unchanged. The scheme "none" instead averages such values like all others,
  // as DDP does. So do the other schemes without error feedback when they do
  // not compress: before start_step, and for small buckets. After an exception
  // the bucket is undefined and the compressor must not be used again.
  virtual void run(
      const Bucket& bucket,
      Transport& transport,
      BucketReport& report) = 0;

  // Bytes that a rank sends to others for a bucket of these slots, averaged
  // over ranks, without checksums; see BucketReport::wire_bytes. For "none",
  // this leaves out the headers: 32 bytes to each other rank, sent only for the
  // first bucket of each signature.
  virtual uint64_t wireBytes(std::span<const Slot> slots, int world) const = 0;

  // Removes and returns this parameter's residual, because another rank of this
  // host exchanges the parameter in this bucket. Returns an empty vector if
  // there is none or the gradient is all zero, see residuals.h. Must be called
  // before the bucket's run(); putBack() restores the residual.
  virtual std::vector<float> takeResidual(
      const Bucket& bucket,
      const Slot& slot) = 0;
  virtual void putBack(const Slot& slot, std::vector<float> residual) = 0;

  // For use between steps. load() replaces all state; unknown kinds throw.
  virtual std::vector<ParameterState> state() const = 0;
  virtual void load(const std::vector<ParameterState>& state) = 0;

  // Multiplies the residuals by the factor by which the loss scale changed.
  virtual void scaleResiduals(float factor) = 0;
  // Adds the values that were sent in this step to the residuals again, because
  // GradScaler skipped the step. Must be called before the next step's first
  // run(), before or after scaleResiduals(). Does nothing without error
  // feedback.
  virtual void stepSkipped() = 0;
};

} // namespace commprof::compress
