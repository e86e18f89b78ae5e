#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "kernel_cases.h"
#include "tune/kernels/blocks/block_quant.h"
#include "tune/kernels/blocks/cast.h"
#include "tune/kernels/linear/compare.h"
#include "tune/kernels/parallel.h"

using namespace commprof::kernels;
using namespace kernel_cases;

// The thread sanitizer crashes when the child of a process with threads starts
// a thread.
#ifdef __SANITIZE_THREAD__
constexpr bool kChildMayStartThreads = false;
#else
constexpr bool kChildMayStartThreads = true;
#endif

namespace {

constexpr size_t kMany = 3 * kGrain + 12345;

void everyPieceIsRunOnce(size_t n, size_t grain, int count) {
  std::vector<std::atomic<int>> runs(n);
  std::atomic<bool> aligned{true};
  parallelFor(n, grain, count, [&](size_t begin, size_t end) {
    if (begin % grain != 0 || end != std::min(n, begin + grain)) {
      aligned = false;
    }
    for (size_t i = begin; i < end; ++i) {
      ++runs[i];
    }
  });
  CHECK(aligned);
  CHECK(std::all_of(runs.begin(), runs.end(), [](const auto& run_count) {
    return run_count == 1;
  }));
}

void anotherThreadTakesAPiece() {
  std::atomic<bool> second_began{false};
  parallelFor(2, 1, 2, [&](size_t begin, size_t) {
    if (begin == 1) {
      second_began = true;
    }
    while (!second_began) {
      std::this_thread::yield();
    }
  });
  CHECK(second_began);
}

void parallelForMayBeNested() {
  std::atomic<size_t> sum{0};
  parallelFor(8, 1, 3, [&](size_t, size_t) {
    parallelFor(
        100, 10, 3, [&](size_t begin, size_t end) { sum += end - begin; });
  });
  CHECK_EQ(sum.load(), 800u);
}

void callersDoNotDisturbEachOther() {
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([] {
      for (int round = 0; round < 200; ++round) {
        size_t sum = 0;
        std::vector<size_t> parts(50);
        parallelFor(
            50, 1, 3, [&](size_t begin, size_t) { parts[begin] = begin; });
        for (const size_t part : parts) {
          sum += part;
        }
        CHECK_EQ(sum, 49u * 50 / 2);
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
}

void aForkedChildStartsItsOwnThreads() {
  const pid_t child = ::fork();
  if (child == 0) {
    if (kChildMayStartThreads) {
      anotherThreadTakesAPiece();
    }
    everyPieceIsRunOnce(1000, 10, kChildMayStartThreads ? 3 : 1);
    ::_exit(check::failed.load() == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  anotherThreadTakesAPiece();
}

class AllKernelResults {
 public:
  AllKernelResults() {
    const std::vector<float> x = make(kPatterns[9], kMany, 1);
    residual_ = make(kPatterns[8], kMany, 2);
    encodeHalf(x.data(), residual_.data(), half_.data(), kMany, 1024);
    encodeBfloat16(x.data(), residual_.data(), brain_.data(), kMany);
    const float* scales[] = {scales_.data(), scales_.data()};
    encodeInt8(
        x.data(), residual_.data(), bytes_.data(), scales_.data(), kMany);
    const int8_t* bytes[] = {bytes_.data(), bytes_.data()};
    reduceInt8(bytes, scales, 2, 0.3f, bytes2_.data(), scales2_.data(), kMany);
    decodeInt8(bytes2_.data(), scales2_.data(), out_.data(), kMany, 1);
    appendResults(out_);
    encodeInt4(
        x.data(), residual_.data(), nibbles_.data(), scales_.data(), kMany);
    const uint8_t* nibbles[] = {nibbles_.data(), nibbles_.data()};
    reduceInt4(
        nibbles, scales, 2, 0.3f, nibbles2_.data(), scales2_.data(), kMany);
    decodeInt4(nibbles2_.data(), scales2_.data(), out_.data(), kMany, 1);
    appendResults(out_);
    appendResults(residual_);
    reduceAndDecode();
    computeStatistics(x);
  }
  const std::vector<float>& results() const {
    return results_;
  }
  const std::vector<double>& sums() const {
    return sums_;
  }

 private:
  void reduceAndDecode() {
    const uint16_t* halves[] = {half_.data(), half_.data()};
    const uint16_t* brains[] = {brain_.data(), brain_.data()};
    const float factors[] = {0.5f, 0.3f};
    std::vector<uint16_t> sum(kMany);
    reduceHalf(halves, factors, 2, sum.data(), kMany);
    decodeHalf(sum.data(), out_.data(), kMany, 3);
    appendResults(out_);
    reduceBfloat16(brains, factors, 2, sum.data(), kMany);
    decodeBfloat16(sum.data(), out_.data(), kMany, 3);
    appendResults(out_);
  }
  void computeStatistics(const std::vector<float>& x) {
    const Comparison c = compare(x.data(), residual_.data(), kMany);
    sums_ = {c.wanted_norm2, c.sent_norm2, c.dot, c.error_norm2};
    sums_.push_back(double(c.zeroed));
    sums_.push_back(maxAbsBits(x.data(), kMany));
    sums_.push_back(maxAbsBitsOfSum(x.data(), residual_.data(), kMany));
  }
  void appendResults(const std::vector<float>& values) {
    results_.insert(results_.end(), values.begin(), values.end());
  }

  std::vector<float> residual_, results_;
  std::vector<float> out_ = std::vector<float>(kMany);
  std::vector<float> scales_ = std::vector<float>(int4Blocks(kMany));
  std::vector<float> scales2_ = scales_;
  std::vector<uint16_t> half_ = std::vector<uint16_t>(kMany);
  std::vector<uint16_t> brain_ = half_;
  std::vector<int8_t> bytes_ = std::vector<int8_t>(kMany);
  std::vector<int8_t> bytes2_ = bytes_;
  std::vector<uint8_t> nibbles_ = std::vector<uint8_t>(int4Bytes(kMany));
  std::vector<uint8_t> nibbles2_ = nibbles_;
  std::vector<double> sums_;
};

void resultsDoNotDependOnTheThreadCount() {
  setThreads(1);
  const AllKernelResults one;
  setThreads(3);
  const AllKernelResults three;
  setThreads(1);
  CHECK_SAME_BITS(three.results(), one.results(), "values");
  CHECK_SAME_BITS(three.sums(), one.sums(), "sums");
}

} // namespace

int main() {
  for (const size_t n : {0, 1, 9, 10, 11, 1000, 1001}) {
    for (const int count : {1, 2, 5}) {
      everyPieceIsRunOnce(n, 10, count);
    }
  }
  everyPieceIsRunOnce(5, 10, -1);
  anotherThreadTakesAPiece();
  parallelForMayBeNested();
  callersDoNotDisturbEachOther();
  if (!check::isEmulated()) {
    aForkedChildStartsItsOwnThreads();
  }
  resultsDoNotDependOnTheThreadCount();
  return check::report();
}
