#include "always_on/found_steps.h"

#include <fstream>

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kStepNs = 1'000'000;
constexpr uint64_t kTrainer = 1;
// PyTorch runs the backward passes of a device on a thread of its own.
constexpr uint64_t kEngine = 2;

Record markOf(uint64_t step, bool ends, uint64_t at_ns, uint32_t found) {
  Record record;
  record.kind = Kind::kStep;
  record.timestamp_ns = at_ns;
  record.op_id = step;
  record.thread = kTrainer;
  record.aux = ends ? 1 : 0;
  record.seq = found;
  return record;
}

struct Loop {
  ArrivalExchange no_groups;
  WaitLedger ledger{no_groups};
  FoundSteps steps{ledger};
  uint64_t passes = 0;

  explicit Loop(bool begins = true) {
    if (begins) {
      mark(0, false, 0);
    }
  }
  void mark(
      uint64_t step,
      bool ends,
      uint64_t at_ns,
      uint32_t found = kStepUpdated) {
    steps.take(markOf(step, ends, at_ns, found));
  }
  void backwardPass(bool communicates = true, uint64_t thread = kTrainer) {
    const uint64_t at_ns = passes++ * kStepNs;
    Record issue;
    issue.kind = Kind::kIssue;
    issue.op = Op::kAllReduce;
    issue.timestamp_ns = at_ns + kStepNs / 2;
    issue.thread = kEngine;
    // The value of an issue is 1 plus the number of its backward pass.
    issue.value = passes;
    if (communicates) {
      steps.take(issue);
    }
    Record wait;
    wait.kind = Kind::kWait;
    wait.timestamp_ns = at_ns + kStepNs / 2;
    wait.value = wait.timestamp_ns + 10'000;
    wait.thread = thread;
    steps.take(wait);
    Record phase;
    phase.kind = Kind::kPhase;
    phase.aux = uint32_t(Phase::kBackward);
    phase.timestamp_ns = at_ns + kStepNs / 4;
    phase.value = at_ns + kStepNs * 3 / 4;
    phase.thread = thread;
    steps.take(phase);
  }
  void backwardPasses(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      backwardPass();
    }
  }
  std::string json() const {
    std::string out;
    steps.appendJson(out);
    return out;
  }
  bool holds(const std::string& part) const {
    return json().find(part) != std::string::npos;
  }
};

std::string histogram(uint64_t count, uint64_t value) {
  Histogram made;
  for (uint64_t i = 0; i < count; ++i) {
    made.add(value);
  }
  std::string out;
  made.appendJson(out);
  return out;
}

constexpr uint64_t kPassesUntilFound = kSurelyUnmarked;

void backwardPassesEndTheStepsOfALoopWithoutMarks() {
  Loop loop;
  loop.backwardPasses(kPassesUntilFound - 1);
  CHECK(loop.holds("\"steps_end\":\"declared\",\"steps\":" + histogram(0, 0)));
  loop.backwardPasses(7);
  // A step lasts from the end of one backward pass to the end of the next pass.
  // The first step is warm-up.
  CHECK(loop.holds(
      "\"steps_end\":\"backward\",\"steps\":" + histogram(5, kStepNs)));
  CHECK(loop.holds("\"exposed\":" + histogram(5, 10'000)));
  CHECK(loop.holds(histogram(5, kStepNs / 2 - 10'000)));
}

void aLoopWithoutABeginHasStepsToo() {
  Loop loop(false);
  loop.backwardPasses(kPassesUntilFound + 6);
  CHECK(loop.holds(
      "\"steps_end\":\"backward\",\"steps\":" + histogram(5, kStepNs)));
}

void onlyCommunicatingPassesOfTheTrainerEndSteps() {
  Loop loop;
  for (uint64_t i = 0; i < 3 * kPassesUntilFound; ++i) {
    loop.backwardPass(i % 3 == 0);
  }
  CHECK(loop.holds("\"steps_end\":\"backward\",\"steps\":" + histogram(0, 0)));
  loop.backwardPasses(1);
  loop.backwardPass(true, 9);
  loop.backwardPasses(2);
  CHECK(loop.holds("\"steps\":{\"count\":2,\"sum\":3000000,"));
}

void theFirstEndMarkDiscardsStepsFoundFromBackward() {
  Loop loop;
  loop.backwardPasses(kPassesUntilFound + 4);
  CHECK(loop.ledger.pending());
  const uint64_t now_ns = loop.passes * kStepNs;
  loop.mark(0, true, now_ns);
  CHECK(!loop.ledger.pending());
  CHECK(loop.holds("\"steps_end\":\"update\",\"steps\":" + histogram(0, 0)));
  loop.backwardPasses(2 * kPassesUntilFound);
  loop.mark(1, true, loop.passes * kStepNs);
  CHECK(loop.holds(
      "\"steps_end\":\"update\",\"steps\":" +
      histogram(1, 2 * kPassesUntilFound * kStepNs)));
}

void declaredStepsReplaceFoundSteps() {
  Loop loop;
  loop.backwardPass();
  loop.mark(0, true, 1 * kStepNs);
  loop.backwardPass();
  loop.mark(1, true, 2 * kStepNs);
  CHECK(loop.ledger.pending());
  CHECK(loop.holds(
      "\"steps_end\":\"update\",\"steps\":" + histogram(1, kStepNs)));
  loop.mark(2, true, 3 * kStepNs, kStepDeclared);
  CHECK(!loop.ledger.pending());
  CHECK(loop.holds("\"steps_end\":\"declared\",\"steps\":" + histogram(0, 0)));
  // The first step between declared boundaries is warm-up.
  loop.mark(3, true, 4 * kStepNs, kStepDeclared);
  loop.mark(4, true, 6 * kStepNs, kStepDeclared);
  loop.mark(5, true, 7 * kStepNs, kStepUpdated);
  loop.mark(5, true, 8 * kStepNs, kStepDeclared);
  CHECK(loop.holds(
      "\"steps_end\":\"declared\",\"steps\":" + histogram(2, 2 * kStepNs)));
}

// The step from 10 to 12 ms is warm-up, because it is the first declared step.
void captureMayResumeBetweenAnUpdateAndADeclaration() {
  Loop loop;
  loop.mark(0, true, 1 * kStepNs);
  loop.mark(1, false, 10 * kStepNs, kStepDeclared);
  loop.mark(1, true, 12 * kStepNs, kStepDeclared);
  loop.mark(2, true, 15 * kStepNs, kStepDeclared);
  CHECK(loop.holds("\"steps\":" + histogram(1, 3 * kStepNs)));
}

void aPauseOfCaptureIsNotAStep() {
  Loop loop;
  loop.backwardPasses(kPassesUntilFound + 3);
  loop.passes += 50;
  loop.mark(0, false, loop.passes * kStepNs);
  loop.backwardPasses(3);
  CHECK(loop.holds("\"steps\":{\"count\":5,\"sum\":4750000,"));
}

void aStepThatLacksRecordsIsNotCounted() {
  Loop loop;
  loop.backwardPasses(kPassesUntilFound + 3);
  loop.steps.forgetOpenStep();
  loop.passes += 50;
  loop.backwardPasses(3);
  CHECK(loop.holds("\"steps\":" + histogram(4, kStepNs)));
}

// A test in Python writes the file. Each line has the step, whether the step
// ends there, the time in ns and who placed the boundary.
void printSteps(const char* path) {
  ArrivalExchange no_groups;
  WaitLedger ledger{no_groups};
  FoundSteps steps{ledger};
  std::ifstream file(path);
  uint64_t step = 0;
  bool ends = false;
  uint64_t at_ns = 0;
  uint32_t found = 0;
  while (file >> step >> ends >> at_ns >> found) {
    steps.take(markOf(step, ends, at_ns, found));
  }
  std::string out;
  steps.appendJson(out);
  std::printf("{%s}\n", out.c_str());
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 2) {
    printSteps(argv[1]);
    return 0;
  }
  backwardPassesEndTheStepsOfALoopWithoutMarks();
  aLoopWithoutABeginHasStepsToo();
  onlyCommunicatingPassesOfTheTrainerEndSteps();
  theFirstEndMarkDiscardsStepsFoundFromBackward();
  declaredStepsReplaceFoundSteps();
  captureMayResumeBetweenAnUpdateAndADeclaration();
  aPauseOfCaptureIsNotAStep();
  aStepThatLacksRecordsIsNotCounted();
  return check::report();
}
