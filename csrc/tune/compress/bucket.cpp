#include "tune/compress/bucket.h"

#include <limits>
#include <stdexcept>

#include "base/fnv1a.h"
#include "base/text.h"

namespace commprof::compress {

uint64_t signatureOf(std::span<const Slot> slots) {
  Fnv1a hash;
  for (const Slot& slot : slots) {
    hash.add(slot.parameter);
    hash.add(slot.offset);
    hash.add(slot.numel);
    hash.add(slot.rows);
    hash.add(slot.cols);
  }
  return hash.value();
}

void checkBucket(const Bucket& bucket) {
  size_t at = 0;
  for (const Slot& slot : bucket.slots) {
    if (slot.offset < at || slot.numel > bucket.numel ||
        slot.offset > bucket.numel - slot.numel ||
        (slot.cols != 0 &&
         uint64_t(slot.rows) * slot.cols != uint64_t(slot.numel))) {
      throw std::invalid_argument(textOf(
          "slot of parameter ",
          slot.parameter,
          " in bucket ",
          bucket.index,
          " does not fit: offset ",
          slot.offset,
          ", ",
          slot.numel,
          " values as ",
          slot.rows,
          " x ",
          slot.cols,
          ", bucket of ",
          bucket.numel,
          " values"));
    }
    at = slot.offset + slot.numel;
  }
  if (bucket.numel > size_t(std::numeric_limits<int32_t>::max())) {
    throw std::invalid_argument(
        "bucket of " + std::to_string(bucket.numel) +
        " values; at most 2^31 - 1 can be compressed");
  }
}

} // namespace commprof::compress
