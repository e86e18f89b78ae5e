// Compression between hosts only: the mean over all ranks, the same bits
// everywhere, on hosts of equal and unequal size.
#include "compress/exchange/host_stage.h"

#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "compress_world.h"
#include "thread_team.h"

using namespace commprof;
using namespace commprof::compress;

namespace {

std::vector<Slot> slotsOf(const std::vector<size_t>& lengths) {
  std::vector<Slot> slots;
  size_t offset = 0;
  for (const size_t numel : lengths) {
    Slot slot;
    slot.parameter = uint32_t(slots.size());
    slot.offset = offset;
    slot.numel = numel;
    slots.push_back(slot);
    offset += numel;
  }
  return slots;
}

void testWholeSlots() {
  const auto cuts = [](const std::vector<size_t>& lengths, int owners) {
    std::vector<size_t> ends;
    size_t begin = 0;
    for (const shm::Slice& slice : wholeSlots(slotsOf(lengths), owners)) {
      CHECK_EQ(slice.begin, begin);
      begin = slice.end;
      ends.push_back(slice.end);
    }
    return ends;
  };
  using Ends = std::vector<size_t>;
  CHECK(cuts({10, 10, 10, 10}, 2) == Ends({20, 40}));
  CHECK(cuts({10, 30}, 2) == Ends({10, 40}));
  CHECK(cuts({1000}, 3) == Ends({0, 1000, 1000}));
  CHECK(cuts({5, 100, 5}, 2) == Ends({5, 110}));
  CHECK(cuts({}, 2) == Ends({0, 0}));
}

// All ranks of all hosts, as threads.
struct Job {
  explicit Job(const std::vector<int>& host_sizes) : sizes(host_sizes) {
    for (const int size : sizes) {
      world += size;
      owners = std::min(owners, size);
      shm::TeamOptions options = shm::teamOptions(0, size, 4096);
      options.name = shm::Team::makeName();
      names.push_back(options.name);
      segments.push_back(shm::Team::reserve(options));
    }
    for (int place = 0; place < owners; ++place) {
      rings.push_back(std::make_unique<ThreadGroup>(int(sizes.size())));
    }
  }

  void runRank(
      int host,
      int place,
      const Options& scheme,
      const std::vector<Slot>& slots,
      std::vector<float>& gradient) {
    shm::TeamOptions options =
        shm::teamOptions(place, sizes[size_t(host)], 4096);
    options.name = names[size_t(host)];
    auto team = std::make_shared<shm::Team>(
        options, shm::Segment::alias(segments[size_t(host)]));
    HostStage stage(team, owners, int(sizes.size()), world);
    const auto compressor = Compressor::make(scheme);
    std::unique_ptr<ThreadTransport> transport;
    if (place < owners) {
      transport =
          std::make_unique<ThreadTransport>(*rings[size_t(place)], host);
    }
    Bucket bucket;
    bucket.gradient = gradient.data();
    bucket.numel = gradient.size();
    bucket.slots = slots;
    bucket.signature = signatureOf(slots);
    BucketReport report;
    stage.run(*compressor, bucket, transport.get(), report);
    CHECK(report.spans.size() >= 2);
  }

  std::vector<int> sizes;
  int world = 0;
  int owners = 1 << 20;
  std::vector<std::string> names;
  std::vector<shm::Segment> segments;
  std::vector<std::unique_ptr<ThreadGroup>> rings;
};

void testMean(
    const std::vector<int>& host_sizes,
    const Options& scheme,
    double tolerance) {
  const std::vector<size_t> lengths{3000, 500, 1, 2500, 700};
  const std::vector<Slot> slots = slotsOf(lengths);
  Job job(host_sizes);
  Gradients gradients = someGradients(job.world, 6701, 3);
  const std::vector<double> mean = meanOf(gradients);
  std::vector<std::thread> threads;
  size_t rank = 0;
  for (size_t host = 0; host < host_sizes.size(); ++host) {
    for (int place = 0; place < host_sizes[host]; ++place, ++rank) {
      threads.emplace_back([&, host, place, rank] {
        job.runRank(int(host), place, scheme, slots, gradients[rank]);
      });
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(relativeError(mean, gradients[0]) <= tolerance);
  for (const auto& gradient : gradients) {
    CHECK(sameBits(gradient, gradients[0]));
  }
}

} // namespace

int main() {
  testWholeSlots();
  for (const std::vector<int>& sizes :
       {std::vector<int>{2, 2}, {3, 1}, {1, 2, 3}, {4, 4}}) {
    testMean(sizes, optionsOf("none"), 1e-6);
    testMean(sizes, optionsOf("fp16"), 1e-3);
    testMean(sizes, optionsOf("int8"), 3e-2);
  }
  return check::report();
}
