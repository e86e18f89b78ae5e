#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "thread_team.h"
#include "tune/shm/collectives.h"
#include "tune/shm/slices.h"

using namespace commprof::shm;

namespace {

struct Case {
  Element element;
  Reduction reduction;
  size_t count;
  int owners; // With 0 owners, the test calls allReduce().
  uint64_t seed;
};

Case draw(std::mt19937_64& random, int size) {
  constexpr Element kElements[] = {
      Element::kF32,
      Element::kF64,
      Element::kF16,
      Element::kBf16,
      Element::kI32,
      Element::kI64};
  constexpr Reduction kReductions[] = {
      Reduction::kSum, Reduction::kMax, Reduction::kMin};
  Case test_case;
  test_case.element = kElements[random() % 6];
  test_case.reduction = kReductions[random() % 3];
  test_case.count = random() % 4 == 0 ? random() % 20000 : random() % 300;
  test_case.owners = int(random() % uint64_t(size + 1));
  test_case.seed = random();
  return test_case;
}

// Every element type represents small integers and their sums exactly.
int valueOf(const Case& test_case, int rank, size_t i) {
  const uint64_t mixed =
      (test_case.seed + uint64_t(rank) * 7919 + i) * 0x9e3779b97f4a7c15ull;
  return int(mixed >> 60);
}

// GCC 11 has no _Float16. `whole` must be exact in binary16.
uint16_t toHalf(int whole) {
  const float value = float(whole);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  constexpr uint32_t kBiasDifference = (127 - 15) << 10;
  return whole == 0 ? 0
                    : uint16_t(bits >> 16 & 0x8000) |
          uint16_t((bits >> 13 & 0x3ffff) - kBiasDifference);
}

uint16_t toBfloat16(int whole) {
  const float value = float(whole);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t(bits >> 16);
}

template <class T>
void put(std::vector<std::byte>& data, size_t i, T value) {
  std::memcpy(data.data() + i * sizeof value, &value, sizeof value);
}

void write(std::vector<std::byte>& data, Element element, size_t i, int whole) {
  switch (element) {
    case Element::kF32:
      return put(data, i, float(whole));
    case Element::kF64:
      return put(data, i, double(whole));
    case Element::kF16:
      return put(data, i, toHalf(whole));
    case Element::kBf16:
      return put(data, i, toBfloat16(whole));
    case Element::kI32:
      return put(data, i, int32_t(whole));
    case Element::kI64:
      return put(data, i, int64_t(whole));
  }
}

std::vector<std::byte> inputOf(const Case& test_case, int rank) {
  std::vector<std::byte> out(
      test_case.count * commprof::kernels::elementBytes(test_case.element));
  for (size_t i = 0; i < test_case.count; ++i) {
    write(out, test_case.element, i, valueOf(test_case, rank, i));
  }
  return out;
}

std::vector<std::byte> expected(const Case& test_case, int size) {
  std::vector<std::byte> out(
      test_case.count * commprof::kernels::elementBytes(test_case.element));
  for (size_t i = 0; i < test_case.count; ++i) {
    int result = valueOf(test_case, 0, i);
    for (int rank = 1; rank < size; ++rank) {
      const int other = valueOf(test_case, rank, i);
      result = test_case.reduction == Reduction::kSum ? result + other
          : test_case.reduction == Reduction::kMax    ? std::max(result, other)
                                                      : std::min(result, other);
    }
    write(out, test_case.element, i, result);
  }
  return out;
}

std::vector<Slice> slicesOf(const Case& test_case) {
  if (test_case.seed % 2 == 0) {
    return equalSlices(test_case.owners, test_case.count);
  }
  std::mt19937_64 random(test_case.seed);
  std::vector<size_t> cuts{0, test_case.count};
  while (cuts.size() <= size_t(test_case.owners)) {
    cuts.push_back(test_case.count == 0 ? 0 : random() % (test_case.count + 1));
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<Slice> slices;
  for (size_t i = 0; i < size_t(test_case.owners); ++i) {
    slices.push_back({cuts[i], cuts[i + 1]});
  }
  return slices;
}

void runCases(int size, size_t slot_bytes, int cases, uint64_t seed) {
  runTeam(size, slot_bytes, [=](Team& team) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < cases; ++i) {
      const Case test_case = draw(random, size);
      std::vector<std::byte> data = inputOf(test_case, team.rank());
      if (test_case.owners == 0) {
        allReduce(
            team,
            data.data(),
            test_case.count,
            test_case.element,
            test_case.reduction);
      } else {
        const std::vector<Slice> slices = slicesOf(test_case);
        reduceToOwners(
            team, data.data(), slices, test_case.element, test_case.reduction);
        shareFromOwners(team, data.data(), slices, test_case.element);
      }
      CHECK(data == expected(test_case, size));
    }
  });
}

} // namespace

int main(int argc, char** argv) {
  const int cases =
      argc > 1 ? std::atoi(argv[1]) : (check::kSanitized ? 1200 : 2000);
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  constexpr int kSizes[] = {1, 2, 3, 4, 5, 8};
  constexpr size_t kSlots[] = {4096, 65536};
  for (const int size : kSizes) {
    for (const size_t slot_bytes : kSlots) {
      runCases(size, slot_bytes, cases / 12, seed + uint64_t(size));
    }
  }
  return check::report();
}
