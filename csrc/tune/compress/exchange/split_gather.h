// Exchange of chosen values through owners: each rank owns some parts of the
// bucket, sums all ranks' chosen values in them and sends everyone the sums,
// one per place (index in the bucket) that any rank chose. If many ranks choose
// the same places, this is fewer bytes than sending all choices to everyone.
// Ok-Topk (Li and Hoefler, PPoPP 2022) does the same, but then sends only the
// largest sums; here all sums are sent, so no chosen value is dropped.
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

// All-gather of payloads of equal size. Every rank sums all payloads in rank
// order, including its own in encoded form, so the sum has the same bits on all
// ranks.
class Gather {
 public:
  // Returns the buffer for this rank's payload of `bytes` bytes, a size that is
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

// Summary of a rank's chosen values, which is sent before the values. It holds
// the number of chosen values in each part of the bucket, and the chosen places
// that belong to a small sample of places. The sample is the same on all ranks.
// The numbers determine how much each rank sends to each owner; the sample
// shows about how many places the ranks have in common.
struct Choices {
  std::vector<uint32_t> counts; // [part of kernels::kSparsePart places]
  std::vector<uint32_t> drawn; // chosen places that are in the sample
};

// Size of the message that holds Choices, for a bucket of n values.
size_t choicesBytes(size_t n);

// Writes the message with the Choices of this rank, which chose the places
// `chosen`, all below n and in ascending order.
void writeChoices(std::span<const int32_t> chosen, size_t n, std::byte* out);

// Returns the Choices in a message, or null if they are not k places in a
// bucket of n values. The message is choicesBytes(n) long and may have any
// content.
std::optional<Choices> readChoices(const std::byte* in, size_t n, size_t k);

// Returns the number of distinct places that the ranks chose, divided by the
// number of all choices (a place that r ranks chose counts r times): from 1 /
// ranks to 1, estimated from the sample. Equal on all ranks.
double distinctShare(std::span<const Choices> ranks);

class SplitGather {
 public:
  // True if the exchange may send clearly less than `other_bytes`, the bytes a
  // rank sends otherwise, so that agree() is worth its message. Depends only on
  // values that all ranks know.
  static bool canPay(size_t n, size_t k, int world, uint64_t other_bytes);

  // True, on all ranks alike, if run() will send clearly less than
  // `other_bytes`; blocks. `chosen` are this rank's places in ascending order.
  bool agree(Job& job, std::span<const int32_t> chosen, uint64_t other_bytes);

  // Exchanges the values and leaves the mean in the bucket; called after
  // agree(). `encoded` contains this rank's chosen values with their places,
  // see kernels/linear/sparse.h. Rounding errors of the sums are added to the
  // owner's residual, if any.
  void run(Job& job, const uint8_t* encoded);

 private:
  // The part of the bucket that one owner sums.
  struct Region {
    size_t begin = 0; // first value
    size_t numel = 0;
    // By rank: the region's range in the rank's encoding.
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
  // By sender: its encoded values for the region that this rank owns.
  std::vector<const uint8_t*> parts_;
  std::vector<int32_t> places_; // places of the found_ nonzero sums
  std::vector<float> values_;
  size_t found_ = 0;
};

} // namespace commprof::compress
