// Error-feedback residuals: for each parameter, the values that lossy codes
// have not sent yet, in units of this rank's gradients. Residuals are stored in
// arenas that are laid out like buckets. When DDP rebuilds its buckets, each
// parameter's residual moves to the arena of the new bucket. Memory: about 4
// bytes per gradient value, and one array for Residuals::replace().
//
// A parameter that this rank's backward pass did not use has all-zero gradients
// in the bucket. If no rank used the parameter, DDP discards the parameter's
// part of the result, and a residual sent in the bucket would be lost. So
// residuals of parameters with all-zero gradients are withheld until a step
// with a nonzero gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tune/compress/bucket.h"
#include "tune/compress/compressor.h"
#include "tune/compress/scratch.h"

namespace commprof::compress {

// The encoded data that this rank sent in the current step. If GradScaler skips
// the step, the data returns to the residuals.
struct Sent {
  uint64_t signature = 0;
  uint64_t step = 0;
  size_t numel = 0; // number of values in the bucket
  int world = 1;
  int exponent = 0;
  size_t trailer = 0; // bytes that the channel appends to each message
  float factor = 1; // product of all later scaleResiduals() factors
  bool lossless = false; // payload is the bucket in fp32
  bool chosen = false; // payload holds topk's chosen values only
  std::vector<std::byte> payload;
  // With two phases: error of the second rounding, which was added to the
  // residual.
  std::vector<float> lost;
  size_t lost_offset = 0;

  void keep(std::span<const std::byte> bytes) {
    payload.assign(bytes.begin(), bytes.end());
  }
};

class SentLog {
 public:
  // Clears the log if `step` differs from the `step` of the previous call.
  void beginStep(uint64_t step) {
    if (step != step_) {
      clear();
      step_ = step;
    }
  }
  void clear() {
    used_ = 0; // keeps the entries' memory for reuse
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
  // Returns the bucket's residual, bucket.numel values, valid until the next
  // non-const call. Throws std::invalid_argument if a loaded residual's size
  // differs from its parameter's.
  float* forBucket(const Bucket& bucket);
  // Swaps `next` with the memory of this signature's arena. Returns the new
  // residual.
  float* replace(uint64_t signature, Scratch& next);

  // Implements Compressor::takeResidual().
  std::vector<float> take(const Bucket& bucket, const Slot& slot);

  // True if any of the parameters has a residual, even an all-zero one.
  bool holdsAny(std::span<const Slot> slots) const;

  // Returns the arena of this signature, or null if it no longer exists.
  float* find(uint64_t signature);
  std::span<const Slot> slotsOf(uint64_t signature) const;

  void scale(float factor);
  void clear();
  void save(std::vector<ParameterState>& state) const;
  void load(const ParameterState& state);

 private:
  struct Arena {
    Scratch values; // numel floats
    size_t numel = 0;
    std::vector<Slot> slots;
    size_t owned = 0; // number of slots whose residual is in this arena
  };
  struct Home {
    uint64_t signature = 0;
    size_t offset = 0;
    size_t numel = 0;
  };
  void bring(const Slot& slot, uint64_t signature, Arena& arena);
  void leave(const Home& home);

  std::unordered_map<uint64_t, Arena> arenas_;
  std::map<uint32_t, Home> homes_; // parameters whose residual is in an arena
  // Residuals that are not in an arena yet.
  std::map<uint32_t, std::vector<float>> loaded_;
};

// Sets the residuals of parameters with all-zero gradients to zero, until
// putBack() or destruction.
class UnsentResiduals {
 public:
  // `residual` has the bucket's layout; if null, nothing is withheld.
  UnsentResiduals(const Bucket& bucket, float* residual);
  ~UnsentResiduals() {
    putBack();
  }
  UnsentResiduals(const UnsentResiduals&) = delete;
  UnsentResiduals& operator=(const UnsentResiduals&) = delete;

  // Sets the array that now holds the residual.
  void moveTo(float* residual) {
    residual_ = residual;
  }
  // Adds the withheld values to the current residual.
  void putBack();

 private:
  float* residual_;
  // The withheld values of each parameter, with their offset in residual_.
  std::vector<std::pair<size_t, std::vector<float>>> aside_;
};

} // namespace commprof::compress
