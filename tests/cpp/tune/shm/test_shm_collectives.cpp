#include "tune/shm/collectives.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "thread_team.h"
#include "tune/shm/slices.h"

using namespace commprof::shm;

namespace {

template <class T>
std::byte* bytesOf(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}
template <class T>
const std::byte* bytesOf(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

float valueOf(int rank, size_t i, uint64_t round) {
  const uint64_t mixed =
      (round * 1000003 + uint64_t(rank) * 7919 + i) * 0x9e3779b97f4a7c15ull;
  return float(int(mixed >> 52) - 2048) / 128;
}

std::vector<float> inputOf(int rank, size_t n, uint64_t round) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    out[i] = valueOf(rank, i, round);
  }
  return out;
}

// All values are small multiples of 2^-7, so sums are exact in every order.
std::vector<float> sumOf(int size, size_t n, uint64_t round) {
  std::vector<float> out = inputOf(0, n, round);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> other = inputOf(rank, n, round);
    for (size_t i = 0; i < n; ++i) {
      out[i] += other[i];
    }
  }
  return out;
}

void testAllReduce(int size, size_t slot_bytes) {
  runTeam(size, slot_bytes, [size](Team& team) {
    uint64_t round = 0;
    for (const size_t n :
         {0, 1, 15, 16, 17, 1000, 8191, 8192, 8193, 20000, 70001}) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<float> data = inputOf(team.rank(), n, ++round);
        allReduce(team, bytesOf(data), n, Element::kF32, Reduction::kSum);
        CHECK(data == sumOf(size, n, round));
      }
    }
  });
}

void testReductions() {
  constexpr int kSize = 3;
  runTeam(kSize, 4096, [](Team& team) {
    const int64_t own = team.rank() == 1 ? -50 : 10 * team.rank() + 1;
    std::vector<int64_t> wide(3000, own);
    allReduce(team, bytesOf(wide), wide.size(), Element::kI64, Reduction::kSum);
    CHECK(std::ranges::count(wide, -28) == 3000);
    std::vector<int32_t> narrow(3000, int32_t(own));
    allReduce(
        team, bytesOf(narrow), narrow.size(), Element::kI32, Reduction::kMin);
    CHECK(std::ranges::count(narrow, -50) == 3000);
    std::vector<double> doubles(3000, double(own));
    allReduce(
        team, bytesOf(doubles), doubles.size(), Element::kF64, Reduction::kMax);
    CHECK(std::ranges::count(doubles, 21.0) == 3000);
    allReduce(
        team,
        bytesOf(doubles),
        doubles.size(),
        Element::kF64,
        Reduction::kMean);
    CHECK(std::abs(doubles[0] - 21.0) < 1e-14);
    // The ranks' values are 1, 2 and 4. Their sum 7 is exact in bfloat16 and in
    // binary16.
    std::vector<uint16_t> small(3000, uint16_t(0x3f80 + 0x80 * team.rank()));
    allReduce(
        team, bytesOf(small), small.size(), Element::kBf16, Reduction::kSum);
    CHECK(std::ranges::count(small, 0x40e0) == 3000);
    std::vector<uint16_t> half(3000, uint16_t(0x3c00 + 0x400 * team.rank()));
    allReduce(team, bytesOf(half), half.size(), Element::kF16, Reduction::kSum);
    CHECK(std::ranges::count(half, 0x4700) == 3000);
  });
}

void testOtherCollectives(int size) {
  runTeam(size, 8192, [size](Team& team) {
    for (const size_t n : {0, 1, 100, 2047, 2048, 2049, 9000}) {
      for (int root = 0; root < size; ++root) {
        std::vector<float> data = inputOf(team.rank(), n, n);
        broadcast(team, bytesOf(data), n * 4, root);
        CHECK(data == inputOf(root, n, n));
      }
      const std::vector<float> own = inputOf(team.rank(), n, n);
      std::vector<float> all(n * size_t(size));
      allGather(team, bytesOf(own), bytesOf(all), n * 4);
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<float> part = inputOf(rank, n, n);
        CHECK(
            std::equal(part.begin(), part.end(), all.begin() + long(n) * rank));
      }
      const std::vector<float> whole =
          inputOf(team.rank(), n * size_t(size), n + 1);
      std::vector<float> part(n);
      reduceScatter(
          team,
          bytesOf(whole),
          bytesOf(part),
          n,
          Element::kF32,
          Reduction::kSum);
      const std::vector<float> sum = sumOf(size, n * size_t(size), n + 1);
      CHECK(
          std::equal(
              part.begin(), part.end(), sum.begin() + long(n) * team.rank()));
      barrier(team);
    }
  });
}

void testDisagreement() {
  runTeam(2, 4096, [](Team& team) {
    std::vector<float> data(100 + size_t(team.rank()));
    try {
      allReduce(
          team, bytesOf(data), data.size(), Element::kF32, Reduction::kSum);
      CHECK(false);
    } catch (const TeamError& error) {
      CHECK(
          std::strstr(
              error.what(), "rank 0 does all_reduce fp32 sum of 400 bytes") !=
          nullptr);
      CHECK(
          std::strstr(
              error.what(), "rank 1 does all_reduce fp32 sum of 404 bytes") !=
          nullptr);
    }
  });
}

// barrier() and broadcast() use different numbers of slot halves.
void testSumsAfterADisagreement() {
  runTeam(2, 4096, [](Team& team) {
    for (uint64_t round = 0; round < 5; ++round) {
      std::vector<float> data = inputOf(team.rank(), 100, round);
      CHECK_THROWS(
          TeamError,
          team.rank() == 0 ? barrier(team)
                           : broadcast(team, bytesOf(data), 400, 0));
      allReduce(team, bytesOf(data), 100, Element::kF32, Reduction::kSum);
      CHECK(data == sumOf(2, 100, round));
    }
  });
}

std::string reasonOf(Team& team) {
  try {
    barrier(team);
  } catch (const TeamError& error) {
    return error.what();
  }
  return "";
}

void testOneRankLeaves(void (*leave)(Team&), const char* reason) {
  runTeam(3, 4096, [=](Team& team) {
    std::vector<float> data = inputOf(team.rank(), 100, 0);
    allReduce(team, bytesOf(data), 100, Element::kF32, Reduction::kSum);
    CHECK(data == sumOf(3, 100, 0));
    if (team.rank() == 2) {
      leave(team);
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::string error_text = reasonOf(team);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    CHECK(error_text.find("rank 2 (pid ") != std::string::npos);
    CHECK(error_text.find(reason) != std::string::npos);
    CHECK(team.broken());
  });
}

void pinTo(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  CHECK_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}

// The ranks spin only if each rank can have a core of its own.
void testSpinning(const std::vector<int>& cores, bool expected) {
  TeamOptions first = teamOptions(0, int(cores.size()), 4096);
  first.name = Team::makeName();
  Segment segment = Team::reserve(first);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < cores.size(); ++rank) {
    threads.emplace_back([&, rank] {
      pinTo(cores[rank]);
      TeamOptions options = first;
      options.rank = int(rank);
      Team team(options, Segment::alias(segment));
      CHECK_EQ(team.spins(), expected);
      barrier(team);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void testSpinningRanks() {
  cpu_set_t set;
  CHECK_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> usable;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) {
      usable.push_back(core);
    }
  }
  if (usable.size() > 1) {
    testSpinning({usable[0], usable[1]}, true);
    testSpinning({usable[0], usable[1], usable[0]}, false);
  }
  testSpinning({usable[0], usable[0]}, false);
}

size_t bytesInMemory(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDONLY, 0);
  struct stat status{};
  CHECK_EQ(fstat(fd, &status), 0);
  close(fd);
  return size_t(status.st_blocks) * 512;
}

// Linux places a page on the NUMA node of the rank that reserves the page.
void testEachRankReservesItsOwnPages() {
  constexpr int kSize = 4;
  constexpr size_t kSlot = 1 << 20;
  const size_t all = segmentBytes(kSize, kSlot);
  const size_t header = all - 2 * (kSize + 1) * kSlot;
  TeamOptions options = teamOptions(0, kSize, kSlot);
  options.name = Team::makeName();
  Segment first = Team::reserve(options);
  const size_t own = 2 * kSlot + 2 * kSlot / kSize;
  CHECK_EQ(bytesInMemory(options.name), header + own);
  for (options.rank = 1; options.rank < kSize; ++options.rank) {
    const Segment other = Team::reserve(options);
    CHECK_EQ(
        bytesInMemory(options.name), header + size_t(options.rank + 1) * own);
  }
  CHECK_EQ(bytesInMemory(options.name), all);
}

using Slices = std::vector<Slice>;

bool coversAll(const Slices& chunks, size_t count) {
  size_t at = 0;
  for (const Slice& chunk : chunks) {
    if (chunk.begin != at || chunk.end <= at) {
      return false;
    }
    at = chunk.end;
  }
  return at == count;
}

void chunksCoverEverythingOnceInOrder() {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20'000; ++i) {
    const size_t count = 1 + (random() >> (38 + random() % 26));
    const size_t width = size_t(1) << (1 + random() % 3);
    const int owners = int(1 + random() % 9);
    CHECK(coversAll(chunksOf(count, width, owners), count));
  }
}

void firstAndLastChunksAreShort() {
  const size_t count = 6'250'000;
  const Slices chunks = chunksOf(count, 4, 4);
  CHECK_EQ(chunks.size(), 11u);
  CHECK(chunks[0].count() * 4 <= chunks[1].count() + 256);
  CHECK(chunks[1].count() * 2 <= chunks[2].count() + 256);
  CHECK_EQ(chunks[0].count(), chunks[10].count());
  CHECK_EQ(chunks[1].count(), chunks[9].count());
  for (size_t i = 0; i < 8; ++i) {
    CHECK_EQ(chunks[i].end % 64, 0u);
    CHECK(chunks[i].count() <= (size_t(1) << 20));
  }
}

void aShortArrayIsOneChunk() {
  CHECK_EQ(chunksOf(10'000, 4, 2).size(), 1u);
  CHECK(chunksOf(0, 4, 2).empty());
}

} // namespace

int main() {
  for (const int size : {1, 2, 3, 4, 8}) {
    testAllReduce(size, 4096);
    testAllReduce(size, 65536);
  }
  testReductions();
  testOtherCollectives(1);
  testOtherCollectives(3);
  testDisagreement();
  testSumsAfterADisagreement();
  testOneRankLeaves(
      [](Team& team) { team.abandon("out of memory"); },
      "gave up: out of memory");
  testOneRankLeaves([](Team&) {}, "left: it shut its process group down");
  testSpinningRanks();
  testEachRankReservesItsOwnPages();
  chunksCoverEverythingOnceInOrder();
  firstAndLastChunksAreShort();
  aShortArrayIsOneChunk();
  return check::report();
}
