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
          "the slot of parameter ",
          slot.parameter,
          " in bucket ",
          bucket.index,
          " is not valid: it begins at value ",
          slot.offset,
          " and holds ",
          slot.numel,
          " values as ",
          slot.rows,
          " x ",
          slot.cols,
          "; the slot before it ends at ",
          at,
          ", and the bucket ends at ",
          bucket.numel));
    }
    at = slot.offset + slot.numel;
  }
  if (bucket.numel > size_t(std::numeric_limits<int32_t>::max())) {
    throw std::invalid_argument(
        "a bucket has " + std::to_string(bucket.numel) +
        " values, but at most 2^31 - 1 can be compressed: use smaller buckets");
  }
}

} // namespace commprof::compress
