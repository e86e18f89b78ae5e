// Finds the steps of one rank, even if its training loop marks none. A step
// ends at one of these, from the strongest rule to the weakest:
//
//   - a mark that the script declares,
//   - a mark found at an optimizer's update,
//   - the end of a backward pass that communicated.
//
// The first step that a rule ends discards the steps of weaker rules, and
// weaker rules then no longer apply. The weakest rule applies only from the
// kSurelyUnmarked-th backward pass that communicated on. The rules are those of
// commprof/trace/found_steps.py.
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
  explicit FoundSteps(WaitLedger& ledger) : ledger_(ledger), marked_(&ledger) {}

  // Like StepSummary::take(). In a loop without marks, take the records of a
  // backward pass's operations before the record of the pass. Otherwise two
  // steps become one.
  void take(const Record& record);
  // Discards the open step, because some of its records are missing.
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
  // Origin of the last mark that ended a step: kStepDeclared, kStepUpdated or
  // kStepSkipped.
  uint32_t found_ = kStepDeclared;
  Record begin_; // last mark that only begins a step; kind kNone: none yet
  uint32_t thread_ = 0; // thread of the steps; 0 before the first step
  uint64_t backwards_ = 0; // backward passes that communicated
  // Issue times of operations in backward passes that have not ended yet.
  std::vector<uint64_t> issued_ns_;
};

} // namespace commprof
