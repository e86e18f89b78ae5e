// A model's compressor: takes buckets of local gradients, exchanges them with
// the other ranks in fewer bytes, and leaves the same mean on every rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compress/bucket.h"
#include "compress/exchange/transport.h"

namespace commprof::compress {

// By name, as on the command line: "topk" with {"ratio": 0.01}. Names and
// values are those of scheme_table.h; commprof/compressors has checked them.
struct Options {
  std::string scheme;
  std::map<std::string, double> values;
  uint64_t seed = 0; // PowerSGD's first Q: the same on all ranks
  uint32_t measure_every = 0; // measure quality in every n-th step; 0: never
  // Blocks travel in pieces of about so many encoded bytes: long enough to
  // fill a link, short enough that encoding the next one hides behind it.
  size_t piece_bytes = size_t(1) << 20;
};

// Ranks do not agree on what they exchange. what() names rank, bucket and
// field, and both values.
class DisagreementError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A payload is damaged: what() names rank, bucket and what is wrong.
class PayloadError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One parameter's state: error feedback, and PowerSGD's factor.
struct ParameterState {
  uint32_t parameter = 0;
  std::string kind; // "residual" or "q"
  std::vector<float> values;
};

// Not thread-safe: one thread at a time. Ranks call run() for the same buckets
// in the same order.
class Compressor {
 public:
  virtual ~Compressor() = default;

  // Throws std::invalid_argument for an unknown scheme.
  static std::unique_ptr<Compressor> make(const Options& options);

  // Blocking. Where any rank's gradients are not finite, or above 2^80, the
  // bucket becomes NaN on all ranks and all state stays as it was; only "none"
  // and plain means without error feedback (start_step, small buckets) leave
  // what the sum makes of them, as DDP does. After an exception the bucket's
  // content is undefined and the compressor must not be used again.
  virtual void run(
      const Bucket& bucket,
      Transport& transport,
      BucketReport& report) = 0;

  // Bytes that a rank sends to others for a bucket of these slots, mean over
  // ranks, without checksums. See BucketReport::wire_bytes. "none" sends 32 to
  // each rank once per signature besides.
  virtual uint64_t wireBytes(std::span<const Slot> slots, int world) const = 0;

  // Takes this parameter's residual out, because another rank of this host
  // exchanges the parameter in this bucket. Empty where there is none, and
  // where the parameter's gradient is all zero, see residuals.h. Call it before
  // the bucket's run(); putBack() makes what was taken the residual again.
  virtual std::vector<float> takeResidual(
      const Bucket& bucket,
      const Slot& slot) = 0;
  virtual void putBack(const Slot& slot, std::vector<float> residual) = 0;

  // Between steps. load() replaces all state; unknown kinds are refused.
  virtual std::vector<ParameterState> state() const = 0;
  virtual void load(const std::vector<ParameterState>& state) = 0;

  // The loss scale changed by this factor: residuals follow.
  virtual void scaleResiduals(float factor) = 0;
  // The step was not applied (GradScaler skipped it): what was sent of it
  // returns to the residuals. Call it before the next step's first run(), after
  // or before scaleResiduals(). Nothing happens without error feedback.
  virtual void stepSkipped() = 0;
};

} // namespace commprof::compress
