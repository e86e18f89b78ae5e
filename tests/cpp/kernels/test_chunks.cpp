// How an all-reduce over several hosts is cut up.
#include "shm/slices.h"

#include <random>

#include "check.h"

using namespace commprof;

namespace {

using Slices = std::vector<shm::Slice>;

bool coversAll(const Slices& chunks, size_t count) {
  size_t at = 0;
  for (const shm::Slice& chunk : chunks) {
    if (chunk.begin != at || chunk.end <= at) {
      return false;
    }
    at = chunk.end;
  }
  return at == count;
}

void allOfItOnceAndInOrder() {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20'000; ++i) {
    const size_t count = 1 + (random() >> (38 + random() % 26));
    const size_t width = size_t(1) << (1 + random() % 3);
    const int owners = int(1 + random() % 9);
    CHECK(coversAll(shm::chunksOf(count, width, owners), count));
  }
}

// 25 MB of 4-byte elements, for 4 owners: as many a side, and the longest in
// the middle.
void itBeginsAndEndsShort() {
  const size_t count = 6'250'000;
  const Slices chunks = shm::chunksOf(count, 4, 4);
  CHECK_EQ(chunks.size(), 11u);
  CHECK(chunks[0].count() * 4 <= chunks[1].count() + 256);
  CHECK(chunks[1].count() * 2 <= chunks[2].count() + 256);
  CHECK_EQ(chunks[0].count(), chunks[10].count());
  CHECK_EQ(chunks[1].count(), chunks[9].count());
  for (size_t i = 0; i < 8; ++i) {
    CHECK_EQ(chunks[i].end % 64, 0u); // a cache line
    CHECK(chunks[i].count() <= (size_t(1) << 20));
  }
}

void littleIsOneChunk() {
  CHECK_EQ(shm::chunksOf(10'000, 4, 2).size(), 1u);
  CHECK(shm::chunksOf(0, 4, 2).empty());
}

} // namespace

int main() {
  allOfItOnceAndInOrder();
  itBeginsAndEndsShort();
  littleIsOneChunk();
  return check::report();
}
