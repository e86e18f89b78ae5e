#include "check.h"
#include "compress_world.h"

using namespace commprof::compress;

namespace {

constexpr size_t kValues = 5000;

std::vector<Options> optionsWithFeedback() {
  return {
      optionsOf("topk"),
      optionsOf("topk", {{"ratio", 0.6}}),
      optionsOf("topk", {{"ratio", 1}}),
      optionsOf("powersgd", {{"rank", 2}}),
      optionsOf("int4"),
      optionsOf("int8", {{"feedback", 1}}),
      optionsOf("fp16", {{"feedback", 1}}),
      optionsOf("bf16", {{"feedback", 1}}),
  };
}

std::vector<double> residualOf(
    Compressor& compressor,
    const std::vector<Slot>& slots,
    size_t n) {
  std::vector<double> residual(n);
  for (const ParameterState& state : compressor.state()) {
    for (const Slot& slot : slots) {
      if (state.kind == "residual" && slot.parameter == state.parameter) {
        CHECK_EQ(state.values.size(), slot.numel);
        std::copy(
            state.values.begin(),
            state.values.end(),
            residual.begin() + long(slot.offset));
      }
    }
  }
  return residual;
}

void add(std::vector<double>& sum, const std::vector<double>& x, double f = 1) {
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] += x[i] * f;
  }
}

std::vector<double> meanResidual(
    World& world,
    int size,
    const std::vector<Slot>& slots,
    size_t n) {
  std::vector<double> mean(n);
  for (int rank = 0; rank < size; ++rank) {
    add(mean, residualOf(world[rank], slots, n), 1.0 / size);
  }
  return mean;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += a[i] * a[i];
  }
  return std::sqrt(error / norm);
}

// The sum of the results plus the ranks' mean residual must equal the sum of
// the mean gradients.
void checkConservation(const Options& options, int size) {
  const std::vector<Slot> slots = someSlots(kValues);
  World world(size, options);
  std::vector<double> wanted(kValues), found(kValues);
  for (uint64_t step = 0; step < (check::kThreadSanitized ? 20 : 200); ++step) {
    Gradients gradients = someGradients(size, kValues, uint32_t(step));
    add(wanted, meanOf(gradients));
    world.run(gradients, slots, step);
    add(found, {gradients[0].begin(), gradients[0].end()});
  }
  add(found, meanResidual(world, size, slots, kValues));
  const double lost = distance(wanted, found);
  if (lost > 1e-6) {
    std::fprintf(stderr, "%s: lost %g\n", options.scheme.c_str(), lost);
  }
  CHECK(lost <= 1e-6);
}

// DDP rebuilds its buckets after step 0: the new buckets are smaller and have
// the parameters in reverse order.
void checkBucketRebuild(const Options& options) {
  const std::vector<Slot> first{
      {0, 0, 4096, 64, 64}, {1, 4096, 64, 64, 0}, {2, 4160, 6000, 100, 60}};
  const std::vector<Slot> second{{2, 0, 6000, 100, 60}, {1, 6000, 64, 64, 0}};
  const std::vector<Slot> third{{0, 0, 4096, 64, 64}};
  World world(2, options);
  Gradients gradients = someGradients(2, 10160, 1);
  std::vector<double> wanted = meanOf(gradients);
  world.run(gradients, first, 0);
  std::vector<double> found(gradients[0].begin(), gradients[0].end());

  Gradients part = someGradients(2, 6064, 2), rest = someGradients(2, 4096, 3);
  const auto place = [](const std::vector<double>& front,
                        const std::vector<double>& back,
                        std::vector<double>& to) {
    std::vector<double> all(to.size());
    std::copy_n(front.begin() + 6000, 64, all.begin() + 4096);
    std::copy_n(front.begin(), 6000, all.begin() + 4160);
    std::copy_n(back.begin(), 4096, all.begin());
    add(to, all);
  };
  place(meanOf(part), meanOf(rest), wanted);
  world.run(part, second, 1, 0);
  world.run(rest, third, 1, 1);
  place(
      {part[0].begin(), part[0].end()},
      {rest[0].begin(), rest[0].end()},
      found);
  add(found, meanResidual(world, 2, first, 10160));
  CHECK(distance(wanted, found) <= 1e-6);

  gradients = someGradients(2, 10160, 4);
  add(wanted, meanOf(gradients));
  add(found, meanResidual(world, 2, first, 10160), -1);
  world.run(gradients, first, 2);
  add(found, {gradients[0].begin(), gradients[0].end()});
  add(found, meanResidual(world, 2, first, 10160));
  CHECK(distance(wanted, found) <= 1e-6);
}

// A NaN keeps step 1 from changing residuals, but step 1 still moves them into
// the new bucket.
void checkMovedResidualsAreUnchanged() {
  const std::vector<Slot> first{
      {0, 0, 5000, 5000, 0}, {1, 5000, 3000, 3000, 0}};
  const std::vector<Slot> swapped{
      {1, 0, 3000, 3000, 0}, {0, 3000, 5000, 5000, 0}};
  World world(2, optionsOf("topk"));
  Gradients gradients = someGradients(2, 8000, 1);
  world.run(gradients, first, 0);
  const std::vector<ParameterState> before = world[1].state();
  Gradients broken = someGradients(2, 8000, 2);
  broken[0][17] = NAN;
  world.run(broken, swapped, 1);
  const std::vector<ParameterState> after = world[1].state();
  CHECK_EQ(after.size(), before.size());
  for (size_t i = 0; i < before.size() && i < after.size(); ++i) {
    CHECK_EQ(after[i].parameter, before[i].parameter);
    CHECK(sameBits(after[i].values, before[i].values));
  }
}

void checkReloadedStateContinuesExactly(const Options& options) {
  const std::vector<Slot> slots = someSlots(kValues);
  World original(2, options), reloaded(2, options);
  for (uint64_t step = 0; step < 3; ++step) {
    Gradients gradients = someGradients(2, kValues, uint32_t(step));
    original.run(gradients, slots, step);
  }
  for (int rank = 0; rank < 2; ++rank) {
    reloaded[rank].load(original[rank].state());
  }
  for (uint64_t step = 3; step < 6; ++step) {
    Gradients a = someGradients(2, kValues, uint32_t(step)), b = a;
    original.run(a, slots, step);
    reloaded.run(b, slots, step);
    CHECK(sameBits(a[0], b[0]));
  }
}

void checkSkippedStep(const Options& options, int size) {
  const std::vector<Slot> slots = someSlots(kValues);
  World world(size, options);
  std::vector<double> wanted(kValues);
  Gradients gradients = someGradients(size, kValues, 1);
  add(wanted, meanOf(gradients));
  world.run(gradients, slots, 0);
  std::vector<double> applied(gradients[0].begin(), gradients[0].end());
  gradients = someGradients(size, kValues, 2);
  add(wanted, meanOf(gradients));
  world.run(gradients, slots, 1);
  for (int rank = 0; rank < size; ++rank) {
    world[rank].stepSkipped();
    world[rank].stepSkipped();
  }
  std::vector<double> found = applied;
  add(found, meanResidual(world, size, slots, kValues));
  CHECK(distance(wanted, found) <= 1e-6);
}

// DDP with find_unused_parameters discards the result for a parameter that no
// rank used. Rank 0 never uses the third parameter, but rank 1 does.
void checkUnusedParameters(const Options& options) {
  const std::vector<Slot> slots{
      {0, 0, 4096, 64, 64}, {1, 4096, 6000, 100, 60}, {2, 10096, 64, 64, 0}};
  constexpr size_t n = 10160;
  World world(2, options);
  std::vector<double> wanted(n), found(n);
  for (uint64_t step = 0; step < 9; ++step) {
    const bool uses_second = step % 3 == 0;
    Gradients gradients = someGradients(2, n, uint32_t(step));
    const auto second = [](auto& values) { return values.begin() + 4096; };
    for (auto& g : gradients) {
      if (!uses_second) {
        std::fill_n(second(g), 6000, 0.0f);
      }
    }
    std::fill_n(gradients[0].begin() + 10096, 64, 0.0f);
    add(wanted, meanOf(gradients));
    const std::vector<double> before = residualOf(world[1], slots, n);
    world.run(gradients, slots, step);
    std::vector<double> applied(gradients[0].begin(), gradients[0].end());
    if (!uses_second) {
      const std::vector<double> after = residualOf(world[1], slots, n);
      CHECK(std::equal(second(before), second(before) + 6000, second(after)));
      std::fill_n(second(applied), 6000, 0.0);
    }
    add(found, applied);
  }
  add(found, meanResidual(world, 2, slots, n));
  CHECK(distance(wanted, found) <= 1e-6);
}

// With two phases, rank 0 sums the part of the bucket that it does not use. The
// rounding error of this sum adds to the withheld residual.
void checkParameterUnusedByOneRank(const Options& options) {
  const std::vector<Slot> slots{{0, 0, 4096, 64, 64}, {1, 4096, 9000, 100, 90}};
  constexpr size_t n = 13096;
  World world(3, options);
  std::vector<double> wanted(n), found(n);
  for (uint64_t step = 0; step < 6; ++step) {
    Gradients gradients = someGradients(3, n, uint32_t(step));
    if (step % 2 == 1) {
      std::fill_n(gradients[0].begin(), 4096, 0.0f);
    }
    add(wanted, meanOf(gradients));
    world.run(gradients, slots, step);
    add(found, {gradients[0].begin(), gradients[0].end()});
  }
  add(found, meanResidual(world, 3, slots, n));
  CHECK(distance(wanted, found) <= 1e-6);
}

void checkScaledResiduals() {
  const std::vector<Slot> slots = someSlots(kValues);
  World world(2, optionsOf("topk"));
  Gradients gradients = someGradients(2, kValues, 1);
  world.run(gradients, slots, 0);
  const std::vector<double> before = residualOf(world[0], slots, kValues);
  world[0].scaleResiduals(0.5f);
  const std::vector<double> after = residualOf(world[0], slots, kValues);
  for (size_t i = 0; i < kValues; ++i) {
    CHECK(after[i] == before[i] / 2);
  }
  world[0].stepSkipped();
  std::vector<float> local = someGradients(2, kValues, 1)[0];
  std::vector<double> wanted(local.begin(), local.end());
  add(wanted, wanted, -0.5);
  CHECK(distance(wanted, residualOf(world[0], slots, kValues)) <= 1e-6);
  CHECK_THROWS(std::invalid_argument, world[0].scaleResiduals(0));
  CHECK_THROWS(std::invalid_argument, world[0].scaleResiduals(INFINITY));
  World loaded(1, optionsOf("topk"));
  loaded[0].load({{3, "residual", {2.0f, -4.0f}}});
  loaded[0].scaleResiduals(0.5f);
  const auto state = loaded[0].state();
  CHECK_EQ(state.size(), 1u);
  CHECK(state.at(0).values == std::vector<float>({1.0f, -2.0f}));
}

void checkLosslessSendsResiduals(
    size_t n,
    std::map<std::string, double> values) {
  const std::vector<Slot> slots{{3, 0, n, uint32_t(n), 0}};
  World world(2, optionsOf("topk", std::move(values)));
  world[0].load({{3, "residual", std::vector<float>(n, 2.0f)}});
  world[1].load({{3, "residual", std::vector<float>(n, 4.0f)}});
  Gradients gradients(2, std::vector<float>(n, 1.0f));
  world.run(gradients, slots, 0);
  CHECK_EQ(gradients[0][0], 4.0f);
  CHECK_EQ(residualOf(world[0], slots, n)[0], 0.0);
  world[0].stepSkipped();
  CHECK_EQ(residualOf(world[0], slots, n)[0], 3.0);
}

void checkInvalidLoadsAreRejected() {
  World world(1, optionsOf("topk"));
  CHECK_THROWS(std::invalid_argument, world[0].load({{0, "q", {1.0f}}}));
  world[0].load({{0, "residual", {1.0f}}});
  Gradients gradients = someGradients(1, kValues, 1);
  const auto errors = world.tryRun(gradients, {{0, 0, 5000, 5000, 0}}, 0);
  CHECK(
      messageOf(errors[0]).find("has 1 values, but the parameter has 5000") !=
      std::string::npos);
}

} // namespace

int main() {
  for (const Options& options : optionsWithFeedback()) {
    checkConservation(options, 3);
    checkSkippedStep(options, 3);
    if (!check::kThreadSanitized) {
      checkBucketRebuild(options);
      checkReloadedStateContinuesExactly(options);
      checkSkippedStep(options, 2);
      checkUnusedParameters(options);
      checkParameterUnusedByOneRank(options);
    }
  }
  checkConservation(optionsOf("int4"), 1);
  checkConservation(optionsOf("topk"), 8);
  checkMovedResidualsAreUnchanged();
  checkScaledResiduals();
  checkLosslessSendsResiduals(100, {});
  checkLosslessSendsResiduals(9000, {{"start_step", 2}});
  checkInvalidLoadsAreRejected();
  return check::report();
}
