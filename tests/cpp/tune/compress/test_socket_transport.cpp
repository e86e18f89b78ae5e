#include <algorithm>
#include <deque>
#include <random>

#include "check.h"
#include "compress_world.h"
#include "socket_world.h"

using namespace commprof;
using namespace commprof::net;

namespace {

void checkExchanges(int world, size_t max_bytes, uint32_t rounds) {
  const auto bytesOf = [max_bytes](uint32_t number, int from, int to) {
    std::mt19937 generator(number * 4096 + uint32_t(from * 64 + to));
    if (generator() % 5 == 0) {
      return size_t(0);
    }
    const size_t max_length = max_bytes >> (generator() % 12);
    return size_t(generator()) % std::max<size_t>(1, max_length) + 1;
  };
  const auto errors =
      runConnected(world, kLongTimeout, [&](const std::shared_ptr<Mesh>& mesh) {
        SocketTransport transport(mesh, nullptr);
        std::mt19937 rank_generator(uint32_t(mesh->rank()));
        std::deque<Round> in_flight;
        for (uint32_t number = 0; number < rounds; ++number) {
          in_flight.emplace_back(transport, number, [&](int from, int to) {
            return bytesOf(number, from, to);
          });
          while (in_flight.size() > rank_generator() % 6) {
            in_flight.front().finish();
            in_flight.pop_front();
          }
        }
        for (Round& round : in_flight) {
          round.finish();
        }
        CHECK(mesh->usable());
      });
  for (const auto& error : errors) {
    CHECK_EQ(compress::messageOf(error), "");
  }
}

void checkLargerThanBuffers() {
  const auto errors =
      runConnected(3, kLongTimeout, [](const std::shared_ptr<Mesh>& mesh) {
        SocketTransport transport(mesh, nullptr);
        const auto bytesOf = [](int, int) {
          return size_t(check::kThreadSanitized ? 12 : 24) << 20;
        };
        Round first(transport, 0, bytesOf);
        Round second(transport, 1, bytesOf);
        second.finish();
        first.finish();
      });
  for (const auto& error : errors) {
    CHECK_EQ(compress::messageOf(error), "");
  }
}

void checkCompressors(int world, const std::string& scheme) {
  using namespace commprof::compress;
  constexpr size_t kValues = check::kThreadSanitized ? 60'000 : 300'000;
  const std::vector<Slot> slots = someSlots(kValues);
  World thread_world(world, optionsOf(scheme));
  std::vector<std::unique_ptr<Compressor>> compressors;
  for (int rank = 0; rank < world; ++rank) {
    compressors.push_back(Compressor::make(optionsOf(scheme)));
  }
  Gradients expected = someGradients(world, kValues, 7);
  Gradients found = expected;
  ThreadGroup group(world);
  const auto errors =
      runConnected(world, kLongTimeout, [&](const std::shared_ptr<Mesh>& mesh) {
        const auto rank = size_t(mesh->rank());
        SocketTransport transport(
            mesh, std::make_unique<ThreadTransport>(group, mesh->rank()));
        for (uint64_t step = 0; step < 3; ++step) {
          Bucket bucket{found[rank].data(), kValues, slots, signatureOf(slots)};
          bucket.step = step;
          BucketReport report;
          compressors[rank]->run(bucket, transport, report);
        }
      });
  for (const auto& error : errors) {
    CHECK_EQ(messageOf(error), "");
  }
  for (uint64_t step = 0; step < 3; ++step) {
    thread_world.run(expected, slots, step);
  }
  for (int rank = 0; rank < world; ++rank) {
    CHECK(sameBits(found[size_t(rank)], expected[size_t(rank)]));
  }
}

} // namespace

int main() {
  const uint32_t rounds = check::kSanitized ? 12 : 60;
  const size_t max_bytes = check::kThreadSanitized ? 1 << 18 : 3 << 20;
  checkExchanges(2, max_bytes, rounds);
  checkExchanges(3, max_bytes / 3, rounds);
  checkExchanges(6, 1 << 14, 3 * rounds);
  checkExchanges(1, 100, 3);
  checkLargerThanBuffers();
  for (const char* scheme : {"fp16", "int8", "topk", "powersgd"}) {
    checkCompressors(3, scheme);
    if (!check::kThreadSanitized) {
      checkCompressors(2, scheme);
    }
  }
  return check::report();
}
