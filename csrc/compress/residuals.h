// What lossy codes have not yet sent, per parameter, in units of this rank's
// gradients. For speed it lies in arenas laid out like buckets, one per
// signature; when DDP rebuilds its buckets, each parameter's part moves to
// where the parameter now is. 4 bytes a parameter; arenas that are replaced
// grow to the largest one.
//
// Residuals that stay behind. A parameter that this rank's backward pass did
// not use has a gradient of zeros in the bucket. If no rank used it, DDP
// (find_unused_parameters, static_graph) leaves its .grad as it was and drops
// what the bucket brings, and a residual that had been sent would be lost.
// Whether another rank used it, no rank knows in time. So residuals of
// parameters whose gradients are all zero are put aside until there is another
// gradient to go with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compress/bucket.h"
#include "compress/compressor.h"
#include "compress/scratch.h"

namespace commprof::compress {

// What this rank sent in the current step, as encoded. Where GradScaler skips
// the step, it goes back to the residuals. Costs memory only with error
// feedback: the payload's bytes once more, 1 % of the gradients' for topk with
// its standard ratio; with two phases 4 bytes for each value of this rank's
// chunk besides (int4: 1/8 + 1/W of the gradients).

struct Sent {
  uint64_t signature = 0;
  uint64_t step = 0;
  size_t numel = 0; // of the bucket
  int world = 1;
  int exponent = 0; // of 16-bit values
  size_t trailer = 0; // bytes of each message that are the channel's
  float factor = 1; // by which residuals were scaled since
  bool lossless = false; // payload is the bucket in fp32
  bool chosen = false; // payload is topk's choice, not all values
  std::vector<std::byte> payload; // otherwise the scheme's own
  // What two phases put into the residual besides: their second rounding.
  std::vector<float> lost;
  size_t lost_offset = 0;

  void keep(std::span<const std::byte> bytes) {
    payload.assign(bytes.begin(), bytes.end());
  }
};

class SentLog {
 public:
  // Forgets everything if `step` is another one than before.
  void beginStep(uint64_t step) {
    if (step != step_) {
      clear();
      step_ = step;
    }
  }
  void clear() {
    used_ = 0; // their memory is used again
  }
  Sent& append() {
    if (used_ == entries_.size()) {
      entries_.emplace_back();
    }
    return entries_[used_++];
  }
  std::span<Sent> entries() {
    return std::span(entries_).first(used_);
  }

 private:
  std::vector<Sent> entries_;
  size_t used_ = 0;
  uint64_t step_ = 0;
};

class Residuals {
 public:
  // bucket.numel values, valid until the next call that is not const. Throws
  // std::invalid_argument where a loaded residual has another size than its
  // parameter.
  float* forBucket(const Bucket& bucket);
  // Puts what was written to `next` in the place of the arena that forBucket()
  // gave last for this signature; `next` gets that one's memory.
  float* replace(uint64_t signature, Scratch& next);

  // Compressor::takeResidual().
  std::vector<float> take(const Bucket& bucket, const Slot& slot);

  // Whether some parameter has a residual, be it zero.
  bool holdsAny(std::span<const Slot> slots) const;

  // The arena of forBucket(), or null if it is no longer there.
  float* find(uint64_t signature);
  std::span<const Slot> slotsOf(uint64_t signature) const;

  void scale(float factor);
  void clear();
  void save(std::vector<ParameterState>& state) const;
  void load(const ParameterState& state);

 private:
  struct Arena {
    Scratch values; // numel of them
    size_t numel = 0;
    std::vector<Slot> slots;
    size_t owned = 0; // slots whose residual lies here
  };
  struct Home {
    uint64_t signature = 0;
    size_t offset = 0;
    size_t numel = 0;
  };
  void bring(const Slot& slot, uint64_t signature, Arena& arena);
  void leave(const Home& home);

  std::unordered_map<uint64_t, Arena> arenas_;
  std::map<uint32_t, Home> homes_; // of parameters that lie in an arena
  std::map<uint32_t, std::vector<float>> loaded_; // and of those in none yet
};

// Until it goes out of scope or putBack(), these residuals are zero.
class UnsentResiduals {
 public:
  // `residual` is laid out like the bucket; null: nothing happens.
  UnsentResiduals(const Bucket& bucket, float* residual);
  ~UnsentResiduals() {
    putBack();
  }
  UnsentResiduals(const UnsentResiduals&) = delete;
  UnsentResiduals& operator=(const UnsentResiduals&) = delete;

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
