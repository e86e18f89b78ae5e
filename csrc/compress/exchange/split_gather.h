// Chosen values by way of owners: each rank sums the choices of all for some
// parts of the bucket and sends everyone the sums, one for each place that
// anybody chose. Where many ranks choose the same places, that is fewer bytes
// than everyone's choices sent to everyone: the exchange of Ok-Topk (Li and
// Hoefler, PPoPP 2022) without its second choice, so nothing chosen is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "compress/exchange/messages/channel.h"
#include "compress/schemes/scheme.h"
#include "compress/scratch.h"
#include "kernels/linear/sparse.h"

namespace commprof::compress {

// Everyone receives everyone's payload and adds all of them in the order of
// ranks, its own too and from its encoded form: the same bits everywhere.

class Gather {
 public:
  // Where to encode this rank's payload of so many bytes; the same on all
  // ranks.
  std::byte* prepare(size_t bytes, const Channel& channel);
  std::span<const std::byte> mine() const {
    return {mine_.data(), bytes_};
  }
  // All payloads, by rank, valid until prepare(). Messages of other ranks hold
  // anything: check them.
  std::vector<std::span<const std::byte>> run(Channel& channel);

 private:
  Scratch mine_, theirs_;
  size_t bytes_ = 0;
};

[[noreturn]] void refusePayload(
    int rank,
    const Channel& channel,
    const char* reason);

// What a rank tells the others about the values that it chose, before it sends
// any: how many lie in each part of the bucket, and which of a few places,
// drawn alike by all ranks, are among them. From the first follows who sends
// how much to whom, from the second how many places the ranks have in common.

// Messages as the kernels take them.
inline uint8_t* octets(std::byte* bytes) {
  return reinterpret_cast<uint8_t*>(bytes);
}
inline const uint8_t* octets(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

struct Choices {
  std::vector<uint32_t> counts; // by part of kernels::kSparsePart places
  std::vector<uint32_t> drawn; // those of the drawn places that were chosen
};

// Of the message, for a bucket of n values.
size_t choicesBytes(size_t n);

// chosen: places below n, ascending.
void writeChoices(std::span<const int32_t> chosen, size_t n, std::byte* out);

// Null where the message is not one of k places in a bucket of n values; it is
// choicesBytes(n) long and may hold anything.
std::optional<Choices> readChoices(const std::byte* in, size_t n, size_t k);

// How many places all ranks chose together, each counted once, over the sum of
// what each chose: from 1 / ranks to 1, estimated from the drawn places. Equal
// on all ranks.
double distinctShare(std::span<const Choices> ranks);

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
