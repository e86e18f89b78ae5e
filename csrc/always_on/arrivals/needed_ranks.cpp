#include "always_on/arrivals/needed_ranks.h"

#include <bit>

namespace commprof {

namespace {

uint32_t lowBits(uint32_t place, int count) noexcept {
  return place & ((uint32_t(1) << count) - 1);
}

// gloo's binomial tree: a place gets its data from the one without its highest
// bit, and waits until those that it sends to are there.
bool needsInTree(uint32_t place, uint32_t other) noexcept {
  const bool is_above = lowBits(place, std::bit_width(other)) == other;
  const bool is_child =
      other != 0 && lowBits(other, std::bit_width(other) - 1) == place;
  return is_above || is_child;
}

} // namespace

bool mayBeDoneEarly(Op op) noexcept {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather ||
      op == Op::kScatter || isPointToPoint(op);
}

bool needs(
    const Meaning& meaning,
    uint32_t size,
    uint32_t rank,
    uint32_t other) noexcept {
  if (rank == other) {
    return true;
  }
  if (meaning.op == Op::kGather || meaning.op == Op::kScatter) {
    return rank == meaning.root || other == meaning.root;
  }
  if (meaning.op == Op::kBroadcast && meaning.is_gloo) {
    const uint32_t shift = size - meaning.root % size;
    return needsInTree((rank + shift) % size, (other + shift) % size);
  }
  return true;
}

} // namespace commprof
