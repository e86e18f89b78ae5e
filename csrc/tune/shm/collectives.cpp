#include "tune/shm/collectives.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tune/shm/team.h"

namespace commprof::shm {

namespace {

void slotsAt(
    const Team& team,
    uint32_t half,
    size_t offset,
    std::vector<const std::byte*>& in) {
  in.resize(size_t(team.size()));
  for (int rank = 0; rank < team.size(); ++rank) {
    in[size_t(rank)] = team.slot(rank, half) + offset;
  }
}

// Every rank computes the full reduction itself. Blocks alternate between the
// two halves of a slot. So a rank writes a half again only after the next
// block's barrier, which ranks reach after they have read the half.
void allReduceDirect(
    Team& team,
    std::byte* data,
    size_t count,
    size_t block,
    Element element,
    Reduction reduction,
    Barriers& barriers) {
  const size_t width = kernels::elementBytes(element);
  std::vector<const std::byte*> in;
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t n = std::min(block, count - begin);
    std::byte* part = data + begin * width;
    const uint32_t half = team.nextHalf();
    copyBytes(team.slot(team.rank(), half), part, n * width);
    barriers.arriveAndWait();
    slotsAt(team, half, 0, in);
    kernels::combine(element, reduction, in.data(), team.size(), part, n);
  }
}

// The part of a block that a rank reduces. Parts do not share cache lines.
struct Part {
  size_t begin, end;
};
Part partOf(int rank, int size, size_t n) {
  const size_t share = (n / size_t(size) + 63) / 64 * 64;
  const size_t begin = std::min(n, share * size_t(rank));
  return {begin, rank + 1 == size ? n : std::min(n, begin + share)};
}

// Each rank reduces its part of every block for all ranks. Between two
// barriers, a rank copies out block b - 1, reduces its part of block b and
// copies in block b + 1.
//
// The input of block b + 1 replaces the input of block b - 1, which all ranks
// have read before the last barrier. The result of block b + 1 is written after
// the next barrier, when all ranks have copied out the result of block b - 1.
void allReduceShared(
    Team& team,
    std::byte* data,
    size_t count,
    size_t block,
    Element element,
    Reduction reduction,
    Barriers& barriers) {
  const size_t width = kernels::elementBytes(element);
  const uint32_t first_half = team.nextHalf();
  const size_t blocks = (count + block - 1) / block;
  const auto sizeOf = [&](size_t b) {
    return std::min(block, count - b * block);
  };
  const auto halfOf = [&](size_t b) { return first_half ^ uint32_t(b & 1); };
  // The rank's own part is not copied: only this rank reads it.
  const auto fillSlot = [&](size_t b) {
    if (b < blocks) {
      const Part own = partOf(team.rank(), team.size(), sizeOf(b));
      std::byte* const slot = team.slot(team.rank(), halfOf(b));
      const std::byte* const from = data + b * block * width;
      copyBytes(slot, from, own.begin * width);
      copyBytes(
          slot + own.end * width,
          from + own.end * width,
          (sizeOf(b) - own.end) * width);
    }
  };
  std::vector<const std::byte*> in;
  fillSlot(0);
  barriers.arriveAndWait();
  for (size_t b = 0; b < blocks; ++b) {
    const Part part = partOf(team.rank(), team.size(), sizeOf(b));
    slotsAt(team, halfOf(b), part.begin * width, in);
    in[size_t(team.rank())] = data + (b * block + part.begin) * width;
    kernels::combine(
        element,
        reduction,
        in.data(),
        team.size(),
        team.result(halfOf(b)) + part.begin * width,
        part.end - part.begin);
    fillSlot(b + 1);
    barriers.arriveAndWait();
    copyBytes(
        data + b * block * width, team.result(halfOf(b)), sizeOf(b) * width);
  }
}

// Up to this size, allReduceDirect() is faster, because it has one barrier
// less.
constexpr size_t kDirectBytes = 32 * 1024;

} // namespace

void allReduce(
    Team& team,
    std::byte* data,
    size_t count,
    Element element,
    Reduction reduction) {
  const size_t width = kernels::elementBytes(element);
  const size_t block = team.slotBytes() / width;
  Barriers barriers(
      team, intend(named("all_reduce", element, reduction), count * width));
  if (count == 0) {
    barriers.arriveAndWait();
  } else if (team.size() <= 2 || count * width <= kDirectBytes) {
    allReduceDirect(team, data, count, block, element, reduction, barriers);
  } else {
    allReduceShared(team, data, count, block, element, reduction, barriers);
  }
}

void broadcast(Team& team, std::byte* data, size_t bytes, int root) {
  Barriers barriers(
      team, intend("broadcast from " + std::to_string(root), bytes));
  size_t begin = 0;
  do {
    const size_t n = std::min(team.slotBytes(), bytes - begin);
    const uint32_t half = team.nextHalf();
    if (team.rank() == root) {
      copyBytes(team.slot(root, half), data + begin, n);
    }
    barriers.arriveAndWait();
    if (team.rank() != root) {
      copyBytes(data + begin, team.slot(root, half), n);
    }
    begin += n;
  } while (begin < bytes);
}

void allGather(Team& team, const std::byte* in, std::byte* out, size_t bytes) {
  std::vector<std::byte*> parts;
  for (int rank = 0; rank < team.size(); ++rank) {
    parts.push_back(out + size_t(rank) * bytes);
  }
  allGather(team, in, parts, bytes);
}

void allGather(
    Team& team,
    const std::byte* in,
    const std::vector<std::byte*>& out,
    size_t bytes) {
  Barriers barriers(team, intend("all_gather", bytes));
  size_t begin = 0;
  do {
    const size_t n = std::min(team.slotBytes(), bytes - begin);
    const uint32_t half = team.nextHalf();
    copyBytes(team.slot(team.rank(), half), in + begin, n);
    barriers.arriveAndWait();
    for (int rank = 0; rank < team.size(); ++rank) {
      copyBytes(out[size_t(rank)] + begin, team.slot(rank, half), n);
    }
    begin += n;
  } while (begin < bytes);
}

void reduceScatter(
    Team& team,
    const std::byte* in,
    std::byte* out,
    size_t count,
    Element element,
    Reduction reduction) {
  const size_t width = kernels::elementBytes(element);
  const size_t size = size_t(team.size());
  const size_t block = team.slotBytes() / size / 64 * 64 / width;
  Barriers barriers(
      team, intend(named("reduce_scatter", element, reduction), count * width));
  std::vector<const std::byte*> parts;
  size_t begin = 0;
  do {
    const size_t n = std::min(block, count - begin);
    const uint32_t half = team.nextHalf();
    for (size_t rank = 0; rank < size; ++rank) {
      copyBytes(
          team.slot(team.rank(), half) + rank * n * width,
          in + (rank * count + begin) * width,
          n * width);
    }
    barriers.arriveAndWait();
    slotsAt(team, half, size_t(team.rank()) * n * width, parts);
    kernels::combine(
        element, reduction, parts.data(), team.size(), out + begin * width, n);
    begin += n;
  } while (begin < count);
}

void barrier(Team& team) {
  team.arriveAndCheck(intend("barrier", 0));
}

} // namespace commprof::shm
