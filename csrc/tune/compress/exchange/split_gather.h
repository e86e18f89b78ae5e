// Exchanges chosen values through owners. Each rank owns some parts of the
// bucket, sums all ranks' chosen values in these parts, and sends the sums to
// all ranks. If many ranks choose the same places (indices in the bucket), this
// takes fewer bytes than sending all choices to all ranks. Ok-Topk (Li and
// Hoefler, PPoPP 2022) does the same, but sends only the largest sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tune/compress/exchange/messages/channel.h"
#include "tune/compress/schemes/scheme.h"
#include "tune/compress/scratch.h"
#include "tune/kernels/linear/sparse.h"

namespace commprof::compress {

// All-gather of payloads of equal size. The result includes this rank's own
// payload, so that all ranks can compute bitwise equal sums.
class Gather {
 public:
  // Returns the buffer for this rank's payload. `bytes`: size of the payload,
  // the same on all ranks.
  std::byte* prepare(size_t bytes, const Channel& channel);
  std::span<const std::byte> mine() const {
    return {mine_.data(), bytes_};
  }
  // Returns all payloads, by rank, valid until prepare(). Payloads of other
  // ranks may have any content and must be validated.
  std::vector<std::span<const std::byte>> run(Channel& channel);

 private:
  Scratch mine_, theirs_;
  size_t bytes_ = 0;
};

[[noreturn]] void refusePayload(
    int rank,
    const Channel& channel,
    const char* reason);

// Converts a pointer to the type that the kernels take.
inline uint8_t* octets(std::byte* bytes) {
  return reinterpret_cast<uint8_t*>(bytes);
}
inline const uint8_t* octets(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

// Summary of the places that a rank chose, sent before the values. The counts
// determine how much each rank sends to each owner. The sample of places is the
// same on all ranks; it shows about how many places the ranks have in common.
struct Choices {
  std::vector<uint32_t> counts; // number of chosen places in each part
  std::vector<uint32_t> drawn; // chosen places that are in the sample
};

// Size in bytes of the message that holds Choices, for a bucket of n values.
size_t choicesBytes(size_t n);

// Writes the Choices of this rank to a message. `chosen`: this rank's places,
// all below n, in ascending order.
void writeChoices(std::span<const int32_t> chosen, size_t n, std::byte* out);

// Reads Choices from a message of choicesBytes(n) bytes. Returns nothing if the
// content is invalid or does not describe k places.
std::optional<Choices> readChoices(const std::byte* in, size_t n, size_t k);

// Estimates, from the sample, the number of distinct chosen places divided by
// the number of all choices. A place that r ranks chose counts as r choices.
// The result is the same on all ranks.
double distinctShare(std::span<const Choices> ranks);

class SplitGather {
 public:
  // True if the exchange may send clearly less than `other_bytes`, the bytes
  // that a rank sends otherwise. Call agree() only then. The result is the same
  // on all ranks.
  static bool canPay(size_t n, size_t k, int world, uint64_t other_bytes);

  // True if run() will send clearly less than `other_bytes`; blocks. The result
  // is the same on all ranks. `chosen`: this rank's places in ascending order.
  bool agree(Job& job, std::span<const int32_t> chosen, uint64_t other_bytes);

  // Exchanges the values and writes the mean to the bucket. Call it after
  // agree(). `encoded`: this rank's chosen values with their places, see
  // kernels/linear/sparse.h. Adds the rounding error of the sums to the owner's
  // residual.
  void run(Job& job, const uint8_t* encoded);

 private:
  // The part of the bucket that one owner sums.
  struct Region {
    size_t begin = 0;
    size_t numel = 0;
    // [rank]: the region's range in the rank's encoding.
    std::vector<kernels::SparseRange> from;
  };

  void divide(size_t n);
  void scatter(Job& job, const uint8_t* encoded);
  void sum(Job& job);
  void encodeSums(Job& job);
  void share(Job& job);

  std::vector<Choices> choices_; // by rank
  std::vector<Region> regions_; // by owner
  Gather gather_; // exchanges choices, and the number of sums of each owner
  Scratch sent_, received_, sums_, lost_, results_;
  // [rank]: the rank's encoded values for the region that this rank owns.
  std::vector<const uint8_t*> parts_;
  std::vector<int32_t> places_; // places of the found_ nonzero sums
  std::vector<float> values_;
  size_t found_ = 0;
};

} // namespace commprof::compress
