// A top-K search from a given band: what topK() does after sampling, and what
// tests call with a misleading band. The array is searched in stretches, a
// thread's share each, with candidates of their own; among these the choice is
// exact.
#pragma once

#include "kernels/topk/topk_sample.h"
#include "kernels/topk/topk_table.h"

namespace commprof::kernels {

// The cut that chooses the k largest of `count` >= k values, whose keys are
// all at least band.lowest; fast where the k-th is within the band. values and
// keys, which is overwritten, have room for count + kPad.
Cut findCut(
    const float* values,
    size_t count,
    size_t k,
    KeyBand band,
    int32_t* keys);

// What a search reads. residual is null without error feedback; otherwise it
// becomes x + residual, or x + before where that is not null: then `spent`, the
// same array as x, becomes zero.
struct SearchInput {
  const float* x;
  float* residual;
  size_t n;
  const float* before = nullptr;
  float* spent = nullptr;
  bool streams = false; // that sum goes past the caches
  bool summed = false; // whether residual is that sum by now
};

class Segment {
 public:
  // Between two looks at whether the candidates still fit.
  static constexpr size_t kBlock = 4096;

  // What held and keys must have room for.
  static size_t room(size_t n, size_t k);

  Segment(size_t begin, size_t end, size_t k, Pairs held, int32_t* keys)
      : begin_(begin), end_(end), k_(k), held_(held), keys_(keys) {}

  // Collects what is at least band.lowest; where that is too much, the k
  // largest of it.
  void sweep(const SearchInput& input, KeyBand band);
  // Undoes what that did to the residual, but for the addition.
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

// Where input.residual is not null it becomes the sum, zero where chosen.
// 0 < k <= n.
TopKStats searchBand(
    const SearchInput& input,
    size_t k,
    KeyBand band,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

} // namespace commprof::kernels
