// One way to send a bucket's gradients in fewer bytes. The compressor calls
// inspect(), settles with all ranks that they do the same and that all values
// are finite as far as anybody has seen, and calls run().
//
// How well a scheme renders this rank's own gradients: what a BucketReport says
// of it.
#pragma once

#include <span>
#include <vector>

#include "compress/bucket.h"
#include "compress/compressor.h"
#include "compress/exchange/messages/channel.h"
#include "compress/exchange/messages/wire.h"
#include "compress/residuals.h"
#include "compress/scratch.h"

namespace commprof::compress {

// What there is before the ranks have met.
struct Proposal {
  const Bucket& bucket;
  const float* residual; // as in Job
  Scratch& next; // where a residual to come may be put
  int world;
  BucketReport& report;
};

struct Snapshot {
  // Of |gradient + residual|, see kernels::maxAbsBits(); 0 where run() finds
  // out itself what is not finite.
  uint32_t max_bits = 0;
  // Proposal::next becomes the residual, if all ranks' values are finite; the
  // bucket's gradients are lost.
  bool moved = false;
};

struct Job {
  const Bucket& bucket;
  float* residual; // laid out like the bucket; null without error feedback
  Channel& channel;
  std::span<const Header> headers; // by rank
  Sent* sent; // to keep what was sent in; may be null
  bool finite = true; // run() clears it where it found what is not

  const Header& mine() const {
    return headers[size_t(channel.rank())];
  }
};

// Of |gradient + residual|, which may be null.
uint32_t largestBits(const Bucket& bucket, const float* residual);

class Scheme {
 public:
  virtual ~Scheme() = default;

  // Values, blocks or rank: what must be the same on all ranks for a bucket of
  // n values. 0 where there is nothing to choose.
  virtual uint32_t k(size_t /*n*/) const {
    return 0;
  }
  // Whether the plain mean of fp32 values is sent in its place. From n alone.
  virtual bool lossless(size_t /*n*/) const {
    return false;
  }
  // Reads the bucket once, unless the scheme knows better.
  virtual Snapshot inspect(const Proposal& proposal);
  // Encodes, exchanges, leaves the mean in the bucket, and adds up the report's
  // payload bytes. With a residual: encodes gradient + residual, whose rest the
  // residual then is.
  virtual void run(Job& job) = 0;

  // dense += what run() kept in `sent`.
  virtual void addSent(
      const Sent& sent,
      std::span<const Slot> slots,
      float* dense) = 0;

  // Mean over ranks of what they send, without handshakes.
  virtual uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const = 0;

  // State besides residuals, if any.
  virtual void save(std::vector<ParameterState>& /*state*/) const {}
  // Whether this kind of state is the scheme's.
  virtual bool load(const ParameterState& /*state*/) {
    return false;
  }
  virtual void clear() {}
};

class Quality {
 public:
  // Before the scheme inspects it: copies gradient + residual, which may be
  // null.
  void begin(const Bucket& bucket, const float* residual);
  // After: compares with what was sent.
  void finish(const Job& job, Scheme& scheme);

 private:
  Scratch wanted_, sent_;
  double gradient_norm2_ = 0;
};

} // namespace commprof::compress
