// What a rank tells the others about the values that it chose, before it sends
// any: how many lie in each part of the bucket, and which of a few places,
// drawn alike by all ranks, are among them. From the first follows who sends
// how much to whom, from the second how many places the ranks have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace commprof::compress {

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

} // namespace commprof::compress
