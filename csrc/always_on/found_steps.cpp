#include "always_on/found_steps.h"

#include <algorithm>

namespace commprof {

namespace {

constexpr size_t kMaxIssued = 1 << 14;

Record endOfStep(uint64_t step, const Record& backward) {
  Record mark;
  mark.kind = Kind::kStep;
  mark.timestamp_ns = backward.value;
  mark.op_id = step;
  mark.thread = backward.thread;
  mark.aux = 1;
  return mark;
}

} // namespace

void FoundSteps::take(const Record& record) {
  if (record.kind == Kind::kStep) {
    takeMark(record);
    return;
  }
  marked_.take(record);
  if (marks_end_steps_) {
    return;
  }
  if (unmarked_) {
    unmarked_->take(record);
  }
  if (record.kind == Kind::kIssue && record.value != 0) {
    if (issued_ns_.size() < kMaxIssued) {
      issued_ns_.push_back(record.timestamp_ns);
    }
  } else if (
      record.kind == Kind::kPhase && record.aux == uint32_t(Phase::kBackward) &&
      (record.thread == thread_ || thread_ == 0)) {
    takeBackward(record);
  }
}

void FoundSteps::forgetOpenStep() {
  marked_.forgetOpenStep();
  if (unmarked_) {
    unmarked_->forgetOpenStep();
  }
}

void FoundSteps::takeMark(const Record& mark) {
  if (mark.aux == 1) {
    if (marks_end_steps_ && found_ == kStepDeclared &&
        mark.seq != kStepDeclared) {
      return;
    }
    takeEnd(mark);
  } else {
    begin_ = mark;
  }
  thread_ = mark.thread;
  marked_.take(mark);
  if (unmarked_) { // capture resumes at this mark
    Record begin = mark;
    begin.op_id = backwards_;
    unmarked_->take(begin);
  }
}

// Takes a mark that ends a step. Discards the earlier steps if a weaker rule
// (found_steps.h) has ended them.
void FoundSteps::takeEnd(const Record& mark) {
  if (!marks_end_steps_) {
    marks_end_steps_ = true;
    issued_ns_ = {};
    if (unmarked_) {
      unmarked_.reset();
      ledger_.forgetSteps();
    }
  } else if (mark.seq == kStepDeclared && found_ != kStepDeclared) {
    marked_.forgetSteps();
    ledger_.forgetSteps();
    // All marks since begin_ were found at optimizer updates, so the first
    // declared step begins at begin_.
    marked_.take(begin_);
  }
  found_ = mark.seq;
}

void FoundSteps::takeBackward(const Record& phase) {
  if (!communicated(phase)) {
    return;
  }
  // If always-on mode began inside the loop, no mark has set thread_ yet.
  thread_ = phase.thread;
  if (++backwards_ < kSurelyUnmarked) {
    return;
  }
  if (!unmarked_) {
    unmarked_.emplace(&ledger_);
  }
  unmarked_->take(endOfStep(backwards_ - 1, phase));
}

bool FoundSteps::communicated(const Record& phase) {
  bool inside = false;
  std::erase_if(issued_ns_, [&](uint64_t at_ns) {
    inside |= at_ns >= phase.timestamp_ns && at_ns <= phase.value;
    return at_ns <= phase.value;
  });
  return inside;
}

void FoundSteps::appendJson(std::string& out) const {
  out += "\"steps_end\":\"";
  out += unmarked_              ? "backward"
      : found_ == kStepDeclared ? "declared"
                                : "update";
  out += "\",";
  (unmarked_ ? *unmarked_ : marked_).appendJson(out);
}

} // namespace commprof
