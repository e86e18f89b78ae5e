// Interface of compression schemes. The compressor calls inspect(), exchanges
// headers with all ranks (wire.h), and then calls run().
//
// Quality measures how well a scheme represents this rank's own gradients.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tune/compress/bucket.h"
#include "tune/compress/compressor.h"
#include "tune/compress/exchange/messages/channel.h"
#include "tune/compress/exchange/messages/wire.h"
#include "tune/compress/residuals.h"
#include "tune/compress/scratch.h"

namespace commprof::compress {

// Input of inspect(), which is called before the handshake.
struct Proposal {
  const Bucket& bucket;
  const float* residual; // as in Job
  Scratch& next; // memory for the next residual
  int world;
  BucketReport& report;
};

struct Snapshot {
  // Bits of the largest |gradient + residual|, see kernels::maxAbsBits(). 0 if
  // run() detects non-finite values instead.
  uint32_t max_bits = 0;
  // True if inspect() has overwritten the bucket's gradients and written a new
  // residual to Proposal::next. The new residual is used if the values of all
  // ranks are finite.
  bool moved = false;
};

struct Job {
  const Bucket& bucket;
  float* residual; // laid out like the bucket; null without error feedback
  Channel& channel;
  std::span<const Header> headers; // [rank]
  Sent* sent; // receives a copy of the sent data; may be null
  bool finite = true; // cleared by run() if it finds non-finite values

  const Header& mine() const {
    return headers[size_t(channel.rank())];
  }
};

// Bits of the largest |gradient + residual|; the residual may be null.
uint32_t largestBits(const Bucket& bucket, const float* residual);

class Scheme {
 public:
  virtual ~Scheme() = default;

  // Returns the number of values to send for a bucket of n values, or the rank
  // of the factors. 0 if the scheme has no such number. The same on all ranks.
  virtual uint32_t k(size_t /*n*/) const {
    return 0;
  }
  // True if a bucket of n values is averaged uncompressed, in fp32. Depends on
  // n alone.
  virtual bool lossless(size_t /*n*/) const {
    return false;
  }
  // Finds the largest value in one pass over the bucket, unless overridden.
  virtual Snapshot inspect(const Proposal& proposal);
  // Exchanges the encoded bucket and writes the mean to the bucket. Adds to the
  // report's payload bytes. With a residual, encodes gradient + residual, and
  // stores the rounding error as the new residual.
  virtual void run(Job& job) = 0;

  // Adds the values that run() kept in `sent` to `dense`.
  virtual void addSent(
      const Sent& sent,
      std::span<const Slot> slots,
      float* dense) = 0;

  // Average number of bytes that a rank sends, without handshakes.
  virtual uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const = 0;

  // Saves the state other than residuals, if any.
  virtual void save(std::vector<ParameterState>& /*state*/) const {}
  // Loads the state; false if this scheme has no state of that kind.
  virtual bool load(const ParameterState& /*state*/) {
    return false;
  }
  virtual void clear() {}
};

// Arguments of the functions that make a scheme.
struct SchemeSettings {
  // The value of each option that scheme_table.h lists for the scheme.
  std::map<std::string, double> options;
  uint64_t seed = 0; // of random choices; the same on all ranks
  size_t piece_bytes = 0; // approximate encoded size of a piece
};

// Functions that make a scheme. makeNone() returns null.
#define X(scheme, code, name, feedback, exchange, meaning) \
  std::unique_ptr<Scheme> make##scheme(const SchemeSettings& settings);
COMMPROF_SCHEMES(X)
#undef X

class Quality {
 public:
  // Copies gradient + residual. `residual` may be null. Call it before
  // inspect().
  void begin(const Bucket& bucket, const float* residual);
  // Compares the copy with the values that were sent. Call it after run().
  void finish(const Job& job, Scheme& scheme);

 private:
  Scratch wanted_, sent_;
  double gradient_norm2_ = 0;
};

} // namespace commprof::compress
