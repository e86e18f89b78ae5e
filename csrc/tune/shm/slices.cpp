#include "tune/shm/slices.h"

#include <algorithm>
#include <vector>

#include "tune/shm/team.h"

namespace commprof::shm {

namespace {

// Slices begin at multiples of this number of elements. If the buffer begins at
// a cache line, all slices begin at a cache line.
constexpr size_t kElementsPerLine = 64;

size_t blocksOf(Slices slices, size_t block) {
  size_t longest = 0;
  for (const Slice& slice : slices) {
    longest = std::max(longest, slice.count());
  }
  // At least one block, because the ranks compare their operations at the
  // barrier of the first block.
  return std::max<size_t>(1, (longest + block - 1) / block);
}

uint64_t bytesOf(Slices slices, size_t width) {
  uint64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += slice.count() * width;
  }
  return bytes;
}

Slice pieceOf(const Slice& slice, size_t block, size_t index) {
  const size_t begin = std::min(slice.end, slice.begin + index * block);
  return {begin, std::min(slice.end, begin + block)};
}

} // namespace

std::vector<Slice> equalSlices(int owners, size_t count) {
  const size_t parts = size_t(owners);
  const size_t share = (count + parts - 1) / parts;
  const size_t whole =
      (share + kElementsPerLine - 1) / kElementsPerLine * kElementsPerLine;
  std::vector<Slice> slices;
  for (size_t owner = 0; owner < parts; ++owner) {
    const size_t begin = std::min(count, owner * whole);
    slices.push_back({begin, std::min(count, begin + whole)});
  }
  return slices;
}

// Blocks alternate between the two halves of a slot. So a rank writes a half
// again only after the next block's barrier, which ranks reach after they have
// read the half.
void reduceToOwners(
    Team& team,
    std::byte* data,
    Slices slices,
    kernels::Element element,
    kernels::Reduction reduction,
    const std::optional<Team::Intent>& intent) {
  const size_t width = kernels::elementBytes(element);
  // Number of elements of one owner's slice that a slot holds.
  const size_t block = std::max<size_t>(
      1,
      team.slotBytes() / slices.size() / width / kElementsPerLine *
          kElementsPerLine);
  Barriers barriers(
      team,
      intent ? *intent
             : intend(
                   named("reduce to owners", element, reduction),
                   bytesOf(slices, width)));
  const size_t self = size_t(team.rank());
  std::vector<const std::byte*> parts(size_t(team.size()));
  for (size_t index = 0; index < blocksOf(slices, block); ++index) {
    const uint32_t half = team.nextHalf();
    for (size_t owner = 0; owner < slices.size(); ++owner) {
      const Slice piece = pieceOf(slices[owner], block, index);
      copyBytes(
          team.slot(team.rank(), half) + owner * block * width,
          data + piece.begin * width,
          piece.count() * width);
    }
    barriers.arriveAndWait();
    const Slice piece =
        self < slices.size() ? pieceOf(slices[self], block, index) : Slice{};
    if (piece.count() != 0) {
      for (int rank = 0; rank < team.size(); ++rank) {
        parts[size_t(rank)] = team.slot(rank, half) + self * block * width;
      }
      kernels::combine(
          element,
          reduction,
          parts.data(),
          team.size(),
          data + piece.begin * width,
          piece.count());
    }
  }
}

void shareFromOwners(
    Team& team,
    std::byte* data,
    Slices slices,
    kernels::Element element) {
  const size_t width = kernels::elementBytes(element);
  const size_t block = std::max<size_t>(1, team.slotBytes() / width);
  Barriers barriers(team, intend("share from owners", bytesOf(slices, width)));
  for (size_t index = 0; index < blocksOf(slices, block); ++index) {
    const uint32_t half = team.nextHalf();
    const auto copyPiece = [&](size_t owner, bool in) {
      const Slice piece = pieceOf(slices[owner], block, index);
      std::byte* shared = team.slot(int(owner), half);
      std::byte* mine = data + piece.begin * width;
      copyBytes(in ? shared : mine, in ? mine : shared, piece.count() * width);
    };
    const size_t self = size_t(team.rank());
    if (self < slices.size()) {
      copyPiece(self, true);
    }
    barriers.arriveAndWait();
    for (size_t owner = 0; owner < slices.size(); ++owner) {
      if (owner != self) {
        copyPiece(owner, false);
      }
    }
  }
}

namespace {

// Limits for an owner's part of a chunk, in bytes. Longer parts use the link
// between hosts better. Shorter parts shorten the time before the first
// transfer and after the last transfer.
constexpr size_t kLongestPart = size_t(1) << 20;
constexpr size_t kShortestPart = size_t(1) << 16;
constexpr size_t kChunksAtLeast = 8;
// The first chunk is 1 / kRampFrom of the longest; each next chunk is kRamp
// times longer.
constexpr size_t kRampFrom = 8;
constexpr size_t kRamp = 4;

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
  for (size_t i = ramped; i-- > 0;) { // the first sizes, in reverse order
    chunks.push_back({at, at + chunks[i].count()});
    at = chunks.back().end;
  }
  return chunks;
}

} // namespace commprof::shm
