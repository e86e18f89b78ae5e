// Finds the steps of one rank, also in a loop that marks none. What ends a
// step, from the strongest rule to the weakest:
//
//   - a mark that the script declares,
//   - a mark found at an optimizer's update,
//   - the end of a backward pass that communicated.
//
// Once a rule has ended a step, weaker rules end none. These are the rules of
// commprof/trace/found_steps.py, which knows the whole trace. Here the records
// come one by one. So the weakest rule applies only after kSurelyUnmarked
// backward passes that communicated, and a rule that ends its first step
// discards the steps that a weaker rule has counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "always_on/summary/step_summary.h"
#include "always_on/wait_ledger.h"
#include "core/record.h"

namespace commprof {

// Not thread-safe. take() may throw std::bad_alloc.
class FoundSteps {
 public:
  // `ledger` gets the waits of each step that counts.
  explicit FoundSteps(WaitLedger& ledger) : ledger_(ledger), marked_(&ledger) {}

  // Like StepSummary::take(). In a loop without marks, take the records of the
  // operations issued in a backward pass before the record of the pass itself.
  // Otherwise the pass does not count as one that communicated, and two steps
  // become one.
  void take(const Record& record);
  // Does not count the open step: some of its records were not made.
  void forgetOpenStep();
  // Appends "steps_end" and the members of StepSummary::appendJson().
  void appendJson(std::string& out) const;

 private:
  void takeMark(const Record& mark);
  void takeEnd(const Record& mark);
  void takeBackward(const Record& phase);
  bool communicated(const Record& phase);

  WaitLedger& ledger_;
  StepSummary marked_;
  std::optional<StepSummary> unmarked_; // set once the loop counts as unmarked
  bool marks_end_steps_ = false;
  // Who placed the last mark that ended a step: kStepDeclared, kStepUpdated or
  // kStepSkipped.
  uint32_t found_ = kStepDeclared;
  Record begin_; // the last mark that ends no step; kind kNone before any
  uint32_t thread_ = 0; // thread of the steps; 0 before the first step
  uint64_t backwards_ = 0; // backward passes that communicated
  // Issue times of operations in backward passes that still run.
  std::vector<uint64_t> issued_ns_;
};

} // namespace commprof
