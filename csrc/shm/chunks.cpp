#include "shm/chunks.h"

#include <algorithm>

namespace commprof::shm {

namespace {

// An owner's part of a chunk: long enough to fill a link between hosts while
// the next one is added up, short enough that little of the work within the
// host is before the first or behind the last transfer.
constexpr size_t kLongestPart = size_t(1) << 20;
constexpr size_t kShortestPart = size_t(1) << 16;
constexpr size_t kChunksAtLeast = 8;
// The first is a part of the longest, and each so many times as long as the one
// before.
constexpr size_t kRampFrom = 8;
constexpr size_t kRamp = 4;
constexpr size_t kElementsPerLine = 64; // of a cache, for every type

size_t elements(size_t part_bytes, size_t width, int owners) {
  const size_t count = part_bytes * size_t(owners) / width;
  return count - count % kElementsPerLine;
}

} // namespace

std::vector<Slice> chunksOf(size_t count, size_t width, int owners) {
  const size_t part = count * width / size_t(owners) / kChunksAtLeast;
  const size_t longest =
      elements(std::clamp(part, kShortestPart, kLongestPart), width, owners);
  const size_t shortest = elements(kShortestPart, width, owners);
  std::vector<Slice> chunks;
  size_t at = 0;
  size_t size = std::max(longest / kRampFrom, shortest);
  for (; size < longest && 2 * (at + size) <= count; size *= kRamp) {
    size -= size % kElementsPerLine;
    chunks.push_back({at, at + size});
    at += size;
  }
  const size_t ramped = chunks.size();
  for (const size_t last = count - at; at < last;) {
    const size_t end = std::min(last, at + longest);
    chunks.push_back({at, end});
    at = end;
  }
  for (size_t i = ramped; i-- > 0;) { // as they began, backwards
    chunks.push_back({at, at + chunks[i].count()});
    at = chunks.back().end;
  }
  return chunks;
}

} // namespace commprof::shm
