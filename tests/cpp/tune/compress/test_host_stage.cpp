#include "tune/compress/exchange/host_stage.h"

#include <cmath>
#include <functional>
#include <map>
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
    for (int local_rank = 0; local_rank < owners; ++local_rank) {
      rings.push_back(std::make_unique<ThreadGroup>(int(sizes.size())));
    }
  }

  using Body = std::function<void(HostStage&, Transport*)>;

  void withStage(int host, int local_rank, const Body& body) {
    shm::TeamOptions options =
        shm::teamOptions(local_rank, sizes[size_t(host)], 4096);
    options.name = names[size_t(host)];
    auto team = std::make_shared<shm::Team>(
        options, shm::Segment::alias(segments[size_t(host)]));
    HostStage stage(team, owners, int(sizes.size()), world);
    std::unique_ptr<ThreadTransport> transport;
    if (local_rank < owners) {
      transport =
          std::make_unique<ThreadTransport>(*rings[size_t(local_rank)], host);
    }
    body(stage, transport.get());
  }

  void run(
      const std::function<void(size_t, int, HostStage&, Transport*)>& body) {
    std::vector<std::thread> threads;
    size_t rank = 0;
    for (size_t host = 0; host < sizes.size(); ++host) {
      for (int local_rank = 0; local_rank < sizes[host]; ++local_rank, ++rank) {
        threads.emplace_back([&, host, local_rank, rank] {
          withStage(
              int(host), local_rank, [&](HostStage& stage, Transport* to) {
                body(rank, local_rank, stage, to);
              });
        });
      }
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  std::vector<int> sizes;
  int world = 0;
  int owners = 1 << 20;
  std::vector<std::string> names;
  std::vector<shm::Segment> segments;
  std::vector<std::unique_ptr<ThreadGroup>> rings;
};

Bucket bucketOf(
    const std::vector<Slot>& slots,
    std::vector<float>& gradient,
    uint64_t step) {
  Bucket bucket;
  bucket.gradient = gradient.data();
  bucket.numel = gradient.size();
  bucket.slots = slots;
  bucket.signature = signatureOf(slots);
  bucket.step = step;
  return bucket;
}

void testMean(
    const std::vector<int>& host_sizes,
    const Options& scheme,
    double tolerance) {
  const std::vector<size_t> lengths{3000, 500, 1, 2500, 700};
  const std::vector<Slot> slots = slotsOf(lengths);
  Job job(host_sizes);
  Gradients gradients = someGradients(job.world, 6701, 3);
  const std::vector<double> mean = meanOf(gradients);
  job.run([&](size_t rank, int, HostStage& stage, Transport* transport) {
    const auto compressor = Compressor::make(scheme);
    BucketReport report;
    stage.run(
        *compressor, bucketOf(slots, gradients[rank], 0), transport, report);
    CHECK(report.spans.size() >= 2);
  });
  CHECK(relativeError(mean, gradients[0]) <= tolerance);
  for (const auto& gradient : gradients) {
    CHECK(sameBits(gradient, gradients[0]));
  }
}

std::vector<Slot> reversed(const std::vector<Slot>& slots) {
  std::vector<Slot> result;
  size_t offset = 0;
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    result.push_back(*slot);
    result.back().offset = offset;
    offset += slot->numel;
  }
  return result;
}

using PerParameter = std::map<uint32_t, std::vector<double>>;

void add(
    PerParameter& sums,
    uint32_t parameter,
    std::span<const float> values,
    double factor) {
  std::vector<double>& sum = sums[parameter];
  sum.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    sum[i] += values[i] * factor;
  }
}

struct Steps {
  static constexpr uint64_t kCount = 5;
  static constexpr uint64_t kPoisoned = 2;

  explicit Steps(int world)
      : forward_slots(slotsOf({30000, 5000, 25000, 7000})),
        reversed_slots(reversed(forward_slots)) {
    for (uint64_t step = 0; step < kCount; ++step) {
      gradients.push_back(someGradients(world, 67000, uint32_t(step)));
    }
    gradients[kPoisoned][0][0] = NAN;
  }

  const std::vector<Slot>& slotsIn(uint64_t step) const {
    return step % 2 == 0 ? forward_slots : reversed_slots;
  }

  const std::vector<Slot> forward_slots, reversed_slots;
  std::vector<Gradients> gradients;
};

void addResults(
    const Steps& steps,
    const std::vector<Gradients>& before,
    PerParameter& wanted,
    PerParameter& found) {
  for (uint64_t step = 0; step < Steps::kCount; ++step) {
    for (const Slot& slot : steps.slotsIn(step)) {
      const auto of = [&slot](const std::vector<float>& bucket) {
        return std::span(bucket).subspan(slot.offset, slot.numel);
      };
      const std::span<const float> mean = of(steps.gradients[step][0]);
      if (std::isnan(mean[0])) {
        CHECK_EQ(step, Steps::kPoisoned);
        continue;
      }
      add(found, slot.parameter, mean, 1);
      for (const auto& gradient : before[step]) {
        const double share = 1.0 / double(before[step].size());
        add(wanted, slot.parameter, of(gradient), share);
      }
    }
  }
}

// The results plus the hosts' mean residuals must equal the mean gradients plus
// the loaded residual.
void testResidualsFollowTheirParameters(
    const std::vector<int>& host_sizes,
    const Options& scheme) {
  Job job(host_sizes);
  Steps steps(job.world);
  const std::vector<Gradients> before = steps.gradients;
  const std::vector<float> loaded(25000, 1e-3f);
  std::vector<std::unique_ptr<Compressor>> compressors(size_t(job.world));
  job.run(
      [&](size_t rank, int local_rank, HostStage& stage, Transport* transport) {
        compressors[rank] = Compressor::make(scheme);
        if (local_rank == 0) {
          compressors[rank]->load({{2, "residual", loaded}});
        }
        for (uint64_t step = 0; step < Steps::kCount; ++step) {
          std::vector<float>& gradient = steps.gradients[step][rank];
          const Bucket bucket = bucketOf(steps.slotsIn(step), gradient, step);
          BucketReport report;
          stage.run(*compressors[rank], bucket, transport, report);
        }
      });
  PerParameter wanted, found;
  add(wanted, 2, loaded, 1);
  addResults(steps, before, wanted, found);
  std::map<uint32_t, size_t> residual_counts;
  for (const auto& compressor : compressors) {
    for (const ParameterState& state : compressor->state()) {
      const double share = 1.0 / double(host_sizes.size());
      add(found, state.parameter, state.values, share);
      ++residual_counts[state.parameter];
    }
  }
  for (const Slot& slot : steps.forward_slots) {
    const std::vector<double>& sum = found[slot.parameter];
    const std::vector<float> rounded(sum.begin(), sum.end());
    CHECK(relativeError(wanted[slot.parameter], rounded) <= 1e-6);
    CHECK_EQ(residual_counts[slot.parameter], host_sizes.size());
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
    testResidualsFollowTheirParameters(sizes, optionsOf("topk"));
    testResidualsFollowTheirParameters(sizes, optionsOf("int4"));
  }
  return check::report();
}
