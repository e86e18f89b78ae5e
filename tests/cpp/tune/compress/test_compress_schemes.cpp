#include "check.h"
#include "compress_world.h"
#include "tune/compress/schemes/top_k.h"

using namespace commprof::compress;

namespace {

struct Case {
  Options options;
  // The mean's L2 error is at most this fraction of the ranks' mean L2 norm,
  // for normally distributed values.
  double bound;
};

std::vector<Case> cases() {
  return {
      {optionsOf("none"), 1e-6},
      {optionsOf("fp16"), 1e-3},
      {optionsOf("bf16"), 8e-3},
      {optionsOf("int8"), 2e-2},
      {optionsOf("int4"), 0.25},
      {optionsOf("topk"), 1},
      // For more than two ranks, topk with a ratio of 0.4 sends all values.
      {optionsOf("topk", {{"ratio", 0.4}}), 1},
      {optionsOf("topk", {{"ratio", 1}}), 1e-6},
      {optionsOf("topk", {{"feedback", 0}}), 1},
      {optionsOf("powersgd"), 1},
  };
}

bool usesFeedback(const Case& test_case) {
  const auto given = test_case.options.values.find("feedback");
  if (given != test_case.options.values.end()) {
    return given->second != 0;
  }
  const std::string& scheme = test_case.options.scheme;
  return scheme == "int4" || scheme == "topk" || scheme == "powersgd";
}

// A compressor without state shakes hands only before its first mean:
// non-finite gradients cannot damage any state.
bool handshakesOnce(const Case& test_case, size_t n) {
  const bool sparse = test_case.options.scheme == "topk";
  return test_case.options.scheme == "none" ||
      (sparse && !usesFeedback(test_case) && n < 4096);
}

void checkReports(World& world, const Case& test_case, int size, size_t n) {
  uint64_t sent = 0;
  for (const BucketReport& report : world.reports) {
    CHECK(!report.nonfinite && !report.has_quality);
    uint64_t begin = 0;
    for (const Span& span : report.spans) {
      CHECK(span.begin_ns >= begin && span.end_ns >= span.begin_ns);
      begin = span.begin_ns;
    }
    sent += report.wire_bytes;
    // A payload also has a header, and a note after each chunk.
    CHECK(report.payload_bytes <= n * sizeof(float) + 64 + 4 * size_t(size));
    CHECK(n == 0 || report.payload_bytes > n / 300);
  }
  const std::vector<Slot> slots = someSlots(n);
  const auto ranks = uint64_t(size);
  // wireBytes() returns the mean of the ranks' bytes, rounded down.
  uint64_t predicted = world[0].wireBytes(slots, size) * ranks;
  if (handshakesOnce(test_case, n)) {
    predicted += 32 * ranks * (ranks - 1);
  }
  CHECK(sent <= predicted + ranks && predicted <= sent + ranks);
}

// The error is relative to the ranks' own gradients, because their mean may
// cancel out.
double errorOfMean(const Gradients& local, const std::vector<float>& found) {
  const std::vector<double> wanted = meanOf(local);
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += (wanted[i] - found[i]) * (wanted[i] - found[i]);
    for (const auto& g : local) {
      norm += double(g[i]) * g[i] / double(local.size());
    }
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

void checkMean(const Case& test_case, int size, size_t n) {
  const std::vector<Slot> slots = someSlots(n);
  const Gradients local = someGradients(size, n, 1);
  World world(size, test_case.options), second_world(size, test_case.options);
  Gradients gradients = local, repeated = local;
  world.run(gradients, slots, 0);
  second_world.run(repeated, slots, 0);
  CHECK(sameBits(gradients[0], repeated[0]));
  const double error = errorOfMean(local, gradients[0]);
  if (!(error <= test_case.bound)) {
    std::fprintf(
        stderr,
        "%s, %d ranks, %zu values: error %g\n",
        test_case.options.scheme.c_str(),
        size,
        n,
        error);
  }
  CHECK(error <= test_case.bound);
  const bool lossless = test_case.bound == 1e-6;
  CHECK(!lossless || size > 1 || sameBits(gradients[0], local[0]));
  checkReports(world, test_case, size, n);
}

void checkPermutation(const Case& test_case) {
  const size_t n = 9001;
  Gradients gradients = someGradients(3, n, 5);
  Gradients permuted{gradients[2], gradients[0], gradients[1]};
  World world(3, test_case.options), other(3, test_case.options);
  world.run(gradients, someSlots(n), 0);
  other.run(permuted, someSlots(n), 0);
  const std::vector<double> wanted(gradients[0].begin(), gradients[0].end());
  // A sum halfway between two codes may round either way.
  CHECK(relativeError(wanted, permuted[0]) <= test_case.bound / 10 + 1e-6);
}

void checkZeros(const Case& test_case) {
  Gradients gradients(3, std::vector<float>(9000, 0.0f));
  World world(3, test_case.options);
  for (uint64_t step = 0; step < 3; ++step) {
    world.run(gradients, someSlots(9000), step);
    CHECK(sameBits(gradients[0], std::vector<float>(9000, 0.0f)));
  }
  for (const ParameterState& state : world[0].state()) {
    for (const float value : state.values) {
      CHECK(std::isfinite(value));
    }
  }
}

void checkRankWithoutGradients() {
  for (const Options& options :
       {optionsOf("fp16"), optionsOf("topk", {{"ratio", 0.4}})}) {
    Gradients gradients = someGradients(3, 9000, 1);
    for (size_t rank = 0; rank < gradients.size(); ++rank) {
      for (float& value : gradients[rank]) {
        value *= rank == 0 ? 0.0f : 1e-4f;
      }
    }
    const Gradients local = gradients;
    World world(3, options);
    world.run(gradients, someSlots(9000), 0);
    CHECK(errorOfMean(local, gradients[0]) < 1e-3);
  }
}

void checkManyBuckets(const Case& test_case) {
  World world(2, test_case.options);
  for (uint32_t index = 0; index < 48; ++index) {
    const size_t n = 500 + 251 * index;
    Gradients gradients = someGradients(2, n, index);
    const Gradients local = gradients;
    world.run(gradients, {{index, 0, n, uint32_t(n), 0}}, 0, index);
    CHECK(errorOfMean(local, gradients[0]) <= test_case.bound);
  }
}

// With 4 ranks and a ratio of 0.25, all values as fp16 need as many bytes as
// the chosen values with their places.
void checkEqualBytesSendAllValues() {
  const size_t n = 8192;
  for (const double ratio : {0.25, 0.2499}) {
    World world(4, optionsOf("topk", {{"ratio", ratio}}));
    Gradients gradients = someGradients(4, n, 1);
    const Gradients local = gradients;
    world.run(gradients, someSlots(n), 0);
    CHECK_EQ(errorOfMean(local, gradients[0]) < 1e-3, ratio == 0.25);
  }
}

void checkQuality(const Case& test_case) {
  Options options = test_case.options;
  options.measure_every = 2;
  const size_t n = 20000;
  World world(2, options);
  for (uint64_t step = 0; step < 3; ++step) {
    Gradients gradients = someGradients(2, n, uint32_t(step));
    world.run(gradients, someSlots(n), step);
    const BucketReport& report = world.reports[1];
    const bool lossless = options.scheme == "none" || test_case.bound == 1e-6;
    CHECK_EQ(report.has_quality, step != 1 && !lossless);
    if (report.has_quality) {
      CHECK(
          report.relative_error > 0 && report.relative_error < test_case.bound);
      const double error = report.relative_error;
      CHECK(report.cosine > 0 && report.cosine <= 1 + 1e-9);
      CHECK(error > 0.3 || report.cosine >= 1 - error * error);
      CHECK((report.residual_ratio > 0) == (usesFeedback(test_case)));
      const bool rounds = test_case.bound < 0.3;
      const bool by_choice = test_case.options.scheme == "topk";
      if (rounds || by_choice) {
        CHECK_EQ(report.saturated, 0u);
      }
    }
  }
}

// The documentation quotes the printed figures.
void printAccuracy() {
  for (const Case& test_case : cases()) {
    const size_t n = 1'000'003;
    const Gradients local = someGradients(8, n, 3);
    Gradients gradients = local;
    World world(8, test_case.options);
    world.run(gradients, someSlots(n), 0);
    const auto ratio = test_case.options.values.find("ratio");
    std::printf(
        "%s%s: relative error of the mean of 8 ranks %.3g\n",
        test_case.options.scheme.c_str(),
        ratio == test_case.options.values.end()
            ? ""
            : (" " + std::to_string(ratio->second)).c_str(),
        relativeError(meanOf(local), gradients[0]));
  }
}

void checkShare() {
  CHECK_EQ(shareOf(5000, 10'000'000), 50u); // 5000 is in parts per billion.
  CHECK_EQ(shareOf(5000, 1), 1u);
  CHECK_EQ(shareOf(5000, 1'000'000'000), 5000u);
  CHECK_EQ(shareOf(0, 10'000'000), 0u);
}

} // namespace

int main(int argc, char**) {
  if (argc > 1) {
    printAccuracy();
    return 0;
  }
  for (const Case& test_case : cases()) {
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      for (const size_t n : {0, 1, 15, 100, 4095, 4096, 4097, 70001}) {
        if (!check::kThreadSanitized || (size == 3 && n > 4096)) {
          checkMean(test_case, size, n);
        }
      }
    }
    Case case_in_pieces = test_case;
    case_in_pieces.options.piece_bytes = 4096;
    checkMean(case_in_pieces, 3, 70001);
    checkManyBuckets(test_case);
    checkZeros(test_case);
    if (!check::kThreadSanitized) {
      checkMean(test_case, 2, 1'000'003);
      checkPermutation(test_case);
      checkQuality(test_case);
    }
  }
  checkEqualBytesSendAllValues();
  checkRankWithoutGradients();
  checkShare();
  return check::report();
}
