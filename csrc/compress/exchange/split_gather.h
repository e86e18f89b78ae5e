// Chosen values by way of owners: each rank sums the choices of all for some
// parts of the bucket and sends everyone the sums, one for each place that
// anybody chose. Where many ranks choose the same places, that is fewer bytes
// than everyone's choices sent to everyone: the exchange of Ok-Topk (Li and
// Hoefler, PPoPP 2022) without its second choice, so nothing chosen is dropped.
#pragma once

#include <span>
#include <vector>

#include "compress/exchange/gather.h"
#include "compress/schemes/choices.h"
#include "compress/schemes/scheme.h"
#include "compress/scratch.h"
#include "kernels/linear/sparse.h"

namespace commprof::compress {

class SplitGather {
 public:
  // Whether it can be clearly less than `other_bytes`, which a rank sends
  // otherwise: then agree() is worth its message. From figures that all ranks
  // have.
  static bool canPay(size_t n, size_t k, int world, uint64_t other_bytes);

  // Blocking; all ranks find the same. Whether run() will send clearly less
  // than `other_bytes`. chosen: this rank's places, ascending.
  bool agree(Job& job, std::span<const int32_t> chosen, uint64_t other_bytes);

  // After agree(). encoded: of the chosen places, see kernels/linear/sparse.h.
  // Leaves the mean in the bucket. What the sums lose in rounding goes to the
  // owner's residual, if there is one.
  void run(Job& job, const uint8_t* encoded);

 private:
  // One owner's part of the bucket.
  struct Region {
    size_t begin = 0; // in values
    size_t numel = 0;
    std::vector<kernels::SparseRange> from; // by rank, in its encoding
  };

  void divide(size_t n);
  void scatter(Job& job, const uint8_t* encoded);
  void sum(Job& job);
  void encodeSums(Job& job);
  void share(Job& job);

  std::vector<Choices> choices_; // by rank
  std::vector<Region> regions_; // by owner
  Gather gather_; // of choices, and of how many sums each owner has
  Scratch sent_, received_, sums_, lost_, results_;
  std::vector<const uint8_t*> parts_; // by rank: its values in this region
  std::vector<int32_t> places_; // of the sums that are not zero, found_ of them
  std::vector<float> values_;
  size_t found_ = 0;
};

} // namespace commprof::compress
