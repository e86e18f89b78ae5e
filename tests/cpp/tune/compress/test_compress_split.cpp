#include <cstring>
#include <numeric>
#include <optional>

#include "check.h"
#include "compress_world.h"
#include "tune/compress/exchange/split_gather.h"
#include "tune/kernels/linear/sparse.h"

using namespace commprof::compress;

namespace {

constexpr size_t kParts = check::kThreadSanitized ? 4 : 8;
constexpr size_t kValues = kParts * 65536 - 1000;
constexpr double kRatio = 0.125;
const size_t kChosen = size_t(kRatio * kValues);

Options topK(double ratio, std::map<std::string, double> more = {}) {
  more["ratio"] = ratio;
  return optionsOf("topk", std::move(more));
}

Gradients gradientsAt(int world, uint32_t seed, bool same_places) {
  Gradients gradients = someGradients(world, kValues, seed);
  const size_t every = size_t(1 / kRatio);
  for (int rank = 0; rank < world; ++rank) {
    const size_t own_shift = same_places ? seed : seed + size_t(rank);
    for (size_t i = own_shift % every; i < kValues; i += every) {
      gradients[size_t(rank)][i] += rank % 2 == 0 ? 1.0f : 2.0f;
    }
  }
  return gradients;
}

uint64_t sentBytes(const World& world) {
  uint64_t bytes = 0;
  for (const BucketReport& report : world.reports) {
    bytes += report.wire_bytes;
  }
  return bytes;
}

uint64_t bytesToAllRanks(World& world, int size) {
  return world[0].wireBytes(someSlots(kValues), size) * uint64_t(size);
}

std::vector<double> meanOfChosen(const Gradients& local) {
  std::vector<double> mean(kValues);
  for (const auto& g : local) {
    std::vector<size_t> order(kValues);
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(
        order.begin(),
        order.begin() + long(kChosen),
        order.end(),
        [&g](size_t a, size_t b) {
          const float x = std::fabs(g[a]), y = std::fabs(g[b]);
          return x > y || (x == y && a < b);
        });
    for (size_t i = 0; i < kChosen; ++i) {
      mean[order[i]] += double(g[order[i]]) / double(local.size());
    }
  }
  return mean;
}

void checkSharedChoices(int size, std::map<std::string, double> options) {
  World world(size, topK(kRatio, std::move(options)));
  Gradients gradients = gradientsAt(size, 1, true);
  const Gradients local = gradients;
  world.run(gradients, someSlots(kValues), 0);
  // A rank sends 2 k (W - 1) / W values through owners, instead of k (W - 1).
  const double sent_share =
      double(sentBytes(world)) / double(bytesToAllRanks(world, size));
  CHECK(sent_share > 1.9 / size && sent_share < 2.2 / size);
  // Each value is rounded to binary16 twice.
  CHECK(relativeError(meanOfChosen(local), gradients[0]) < 4e-4);
}

void checkDisjointChoices() {
  World world(4, topK(kRatio));
  Gradients gradients = gradientsAt(4, 1, false);
  const Gradients local = gradients;
  world.run(gradients, someSlots(kValues), 0);
  CHECK_EQ(
      sentBytes(world),
      bytesToAllRanks(world, 4) + 4 * 3 * choicesBytes(kValues));
  CHECK(relativeError(meanOfChosen(local), gradients[0]) < 4e-4);
}

// The ranks choose different places, so sending all values as binary16 needs
// the fewest bytes.
void checkFallbackToAllValues() {
  const double ratio = 0.3;
  World world(4, topK(ratio)),
      fp16_world(4, optionsOf("fp16", {{"feedback", 1}}));
  for (uint64_t step = 0; step < 3; ++step) {
    Gradients gradients = someGradients(4, kValues, uint32_t(step));
    for (auto& g : gradients) {
      std::mt19937 random(uint32_t(&g - gradients.data()) + 10);
      std::shuffle(g.begin(), g.end(), random);
    }
    Gradients fp16_gradients = gradients;
    world.run(gradients, someSlots(kValues), step);
    fp16_world.run(fp16_gradients, someSlots(kValues), step);
    CHECK(sameBits(gradients[0], fp16_gradients[0]));
    const auto a = world[1].state(), b = fp16_world[1].state();
    CHECK_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
      CHECK(sameBits(a[i].values, b[i].values));
    }
  }
}

std::vector<double> meanResidual(World& world, int size) {
  std::vector<double> mean(kValues);
  const std::vector<Slot> slots = someSlots(kValues);
  for (int rank = 0; rank < size; ++rank) {
    for (const ParameterState& state : world[rank].state()) {
      const size_t offset = slots[state.parameter].offset;
      for (size_t i = 0; i < state.values.size(); ++i) {
        mean[offset + i] += double(state.values[i]) / size;
      }
    }
  }
  return mean;
}

void checkConservation() {
  World world(4, topK(kRatio));
  std::vector<double> wanted(kValues);
  std::vector<float> found(kValues);
  const auto accumulate = [](auto& sum, const auto& x) {
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += x[i];
    }
  };
  for (uint64_t step = 0; step < 4; ++step) {
    Gradients gradients = gradientsAt(4, uint32_t(step), step != 2);
    accumulate(wanted, meanOf(gradients));
    world.run(gradients, someSlots(kValues), step);
    if (step == 3) {
      for (int rank = 0; rank < 4; ++rank) {
        world[rank].stepSkipped();
      }
    } else {
      accumulate(found, gradients[0]);
    }
  }
  std::vector<double> residual = meanResidual(world, 4);
  for (size_t i = 0; i < kValues; ++i) {
    wanted[i] -= residual[i];
  }
  CHECK(relativeError(wanted, found) <= 1e-6);
}

// Messages 1 to 4 are the choices, the values for owners, the counts and the
// sums.
void checkDamage(uint64_t sequence, bool checksum) {
  std::mt19937 random{uint32_t(sequence)};
  for (int attempt = 0; attempt < 6; ++attempt) {
    World world(4, topK(kRatio, {{"checksum", checksum ? 1 : 0}}));
    world.group().tamper =
        [&](int from, int, uint64_t number, ThreadGroup::Message& message) {
          if (from == 1 && number == sequence) {
            for (int byte = 0; byte < 40 && !message.empty(); ++byte) {
              message[random() % std::min<size_t>(message.size(), 60)] =
                  std::byte(random());
            }
          }
        };
    Gradients gradients = gradientsAt(4, 1, true);
    int refused = 0;
    for (const auto& error : world.tryRun(gradients, someSlots(kValues), 0)) {
      refused += messageOf(error).find("rank 1, bucket 0") != std::string::npos;
    }
    CHECK(refused > 0);
  }
}

void checkChoices() {
  constexpr size_t n = 200'000;
  std::vector<int32_t> even, odd;
  for (int32_t i = 0; i < int32_t(n); i += 2) {
    even.push_back(i);
    odd.push_back(i + 1);
  }
  const auto roundTrip = [](const std::vector<int32_t>& chosen) {
    std::vector<std::byte> message(choicesBytes(n));
    writeChoices(chosen, n, message.data());
    const auto read = readChoices(message.data(), n, chosen.size());
    CHECK(read.has_value());
    CHECK(!readChoices(message.data(), n, chosen.size() + 1).has_value());
    return read.value_or(Choices{});
  };
  const Choices a = roundTrip(even), b = roundTrip(odd);
  CHECK_EQ(a.counts.size(), 4u);
  CHECK_EQ(a.counts[0], 32768u);
  CHECK_EQ(a.counts[3], (n - 3 * 65536) / 2);
  CHECK(a.drawn.size() > 180 && a.drawn.size() < 340);
  CHECK_EQ(distinctShare(std::vector{a, a, a, a}), 0.25);
  CHECK_EQ(distinctShare(std::vector{a, b}), 1.0);
  const double mixed = distinctShare(std::vector{a, a, b, b});
  CHECK_EQ(mixed, 0.5);
  CHECK_EQ(distinctShare(std::vector{roundTrip({}), roundTrip({})}), 1.0);
}

void checkWholeParts() {
  constexpr size_t n = 200'000;
  std::vector<int32_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::byte> message(choicesBytes(n));
  writeChoices(all, n, message.data());
  const std::vector<uint32_t> whole{65536, 65536, 65536, 3392};
  const auto readWith = [&](const std::vector<uint32_t>& counts) {
    std::memcpy(message.data(), counts.data(), 4 * sizeof(uint32_t));
    return readChoices(message.data(), n, n);
  };
  const std::optional<Choices> read = readWith(whole);
  CHECK(read.has_value() && read->counts == whole);
  CHECK(!readWith({65537, 65535, 65536, 3392}).has_value());
  CHECK(!readWith({65535, 65536, 65536, 3393}).has_value());
}

} // namespace

int main() {
  checkChoices();
  checkWholeParts();
  checkSharedChoices(4, {});
  checkSharedChoices(4, {{"checksum", 1}, {"feedback", 0}});
  checkDisjointChoices();
  if (!check::kThreadSanitized) {
    checkSharedChoices(8, {{"feedback", 0}});
    checkFallbackToAllValues();
    checkConservation();
  }
  for (const uint64_t sequence : {1, 2, 3, 4}) {
    if (!check::kThreadSanitized || sequence == 2) {
      checkDamage(sequence, true);
      checkDamage(sequence, false);
    }
  }
  return check::report();
}
