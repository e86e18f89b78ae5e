#include "compress/bucket.h"

namespace commprof::compress {

uint64_t signatureOf(std::span<const Slot> slots) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&hash](uint64_t x) {
    hash = (hash ^ x) * 0x100000001b3ull;
  };
  for (const Slot& slot : slots) {
    add(slot.parameter);
    add(slot.offset);
    add(slot.numel);
    add(slot.rows);
    add(slot.cols);
  }
  return hash;
}

} // namespace commprof::compress
