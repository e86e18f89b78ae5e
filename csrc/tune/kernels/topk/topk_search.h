// Top-K search from a given band of keys. topK() calls it after sampling; tests
// use misleading bands. The array is divided into one segment per thread, each
// with its own candidates; the final selection among these is exact.
#pragma once

#include "tune/kernels/topk/topk_sample.h"
#include "tune/kernels/topk/topk_table.h"

namespace commprof::kernels {

// Returns the cut that selects the k largest of `count` >= k values, whose keys
// are all at least band.lowest; fast if the k-th largest is within the band.
// values and keys, which is overwritten, have room for count + kPad.
Cut findCut(
    const float* values,
    size_t count,
    size_t k,
    KeyBand band,
    int32_t* keys);

// Input of a search. residual is null without error feedback. Otherwise it
// becomes the sum, which is x + residual if `before` is null, else x + before.
// If `before` is not null, `spent`, the same array as x, becomes zero.
struct SearchInput {
  const float* x;
  float* residual;
  size_t n;
  const float* before = nullptr;
  float* spent = nullptr;
  bool streams = false; // stores of x + before bypass the caches
  bool summed = false; // true once residual holds the sum
};

class Segment {
 public:
  // Number of values between two checks whether the candidates still fit.
  static constexpr size_t kBlock = 4096;

  // Number of entries for which the constructor's `held` and `keys` need room.
  static size_t room(size_t n, size_t k);

  Segment(size_t begin, size_t end, size_t k, Pairs held, int32_t* keys)
      : begin_(begin), end_(end), k_(k), held_(held), keys_(keys) {}

  // Collects the values whose keys are at least band.lowest; if these are too
  // many, keeps the k largest.
  void sweep(const SearchInput& input, KeyBand band);
  // Writes the collected values back into the residual, where sweep() left
  // zeros in their places.
  void putBack(float* residual);
  // Moves the candidates, in their order.
  void moveTo(Pairs to);

  size_t count() const {
    return count_;
  }
  size_t most() const {
    return most_;
  }
  uint32_t reselections() const {
    return reselections_;
  }

 private:
  void collect(
      const SearchInput& input,
      size_t begin,
      size_t end,
      int32_t above);
  int32_t chooseAgain(float* residual, KeyBand& band);

  size_t begin_, end_, k_;
  Pairs held_;
  int32_t* keys_;
  size_t count_ = 0;
  size_t most_ = 0;
  uint32_t reselections_ = 0;
};

// Runs the search. input.residual, if not null, becomes the sum that
// SearchInput describes, with zeros at the selected places. 0 < k <= n.
TopKStats searchBand(
    const SearchInput& input,
    size_t k,
    KeyBand band,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

} // namespace commprof::kernels
