// Top-K search that starts with a band of keys. A wrong band costs time, but
// does not change the result. Each thread collects candidates from its own
// segment of the array.
#pragma once

#include "tune/kernels/topk/topk_sample.h"
#include "tune/kernels/topk/topk_table.h"

namespace commprof::kernels {

// Returns the cut that selects the k largest of `count` values, with k <=
// count. All keys are at least band.lowest. `values` and `keys` have room for
// count + kPad entries. Overwrites `keys`.
Cut findCut(
    const float* values,
    size_t count,
    size_t k,
    KeyBand band,
    int32_t* keys);

struct SearchInput {
  const float* x;
  float* residual; // null without error feedback; becomes the sum
  size_t n;
  // If null, the sum is x + residual, else x + before.
  const float* before = nullptr;
  // If `before` is not null: the same array as x, which becomes zero.
  float* spent = nullptr;
  bool streams = false; // true if stores of x + before bypass the caches
  bool summed = false; // true once residual holds the sum
};

class Segment {
 public:
  // Number of values that are read between two checks of the candidates'
  // number.
  static constexpr size_t kBlock = 4096;

  // Number of entries for which `held` and `keys` need room.
  static size_t room(size_t n, size_t k);

  Segment(size_t begin, size_t end, size_t k, Pairs held, int32_t* keys)
      : begin_(begin), end_(end), k_(k), held_(held), keys_(keys) {}

  // Collects the values with keys of at least band.lowest. If there are too
  // many such values, keeps the k largest.
  void sweep(const SearchInput& input, KeyBand band);
  // Writes the collected values back into the residual, where sweep() left
  // zeros in their places.
  void putBack(float* residual);
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

// Runs the search. If input.residual is not null, it becomes the sum, with
// zeros at the selected places. 0 < k <= n.
TopKStats searchBand(
    const SearchInput& input,
    size_t k,
    KeyBand band,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

} // namespace commprof::kernels
