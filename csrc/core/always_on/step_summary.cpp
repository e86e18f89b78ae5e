#include "core/always_on/step_summary.h"

#include <algorithm>

namespace commprof {

namespace {

// Waits between two phases of one step; more of them count with the last one.
// A step with more in all is not split into wait and wire.
constexpr size_t kMaxPending = 1 << 14;
constexpr uint64_t kNoOperation = UINT64_MAX;

uint64_t less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

} // namespace

void StepSummary::take(const Record& record) {
  if (record.kind == Kind::kStep) {
    takeStep(record);
    return;
  }
  if (!open_ || record.thread != thread_) {
    return;
  }
  switch (record.kind) {
    case Kind::kPhase:
      takePhase(record);
      break;
    case Kind::kWait:
      takeWait(record);
      break;
    case Kind::kFinalizeBegin:
      finalize_ = record;
      waited_in_finalize_ns_ = 0;
      break;
    case Kind::kFinalizeEnd:
      takeFinalizeEnd(record);
      break;
    default:
      break;
  }
}

void StepSummary::takeStep(const Record& record) {
  const bool ends = record.aux == 1;
  if (ends && open_ && step_ == record.op_id && thread_ == record.thread) {
    countStep(record.timestamp_ns);
  }
  open_ = true;
  thread_ = record.thread;
  step_ = record.op_id + (ends ? 1 : 0);
  begin_ns_ = record.timestamp_ns;
  exposed_ns_ = 0;
  phase_ns_ = {};
  pending_.clear();
  exposures_.clear();
  finalize_ = {};
}

// The first step is warm-up: DDP regroups its buckets after it.
void StepSummary::countStep(uint64_t end_ns) {
  if (++complete_steps_ == 1) {
    return;
  }
  const uint64_t wall_ns = less(end_ns, begin_ns_);
  step_ns_.add(wall_ns);
  exposed_ns_per_step_.add(exposed_ns_);
  uint64_t other_ns = less(wall_ns, exposed_ns_);
  for (size_t phase = 1; phase < kPhases; ++phase) {
    phase_ns_per_step_[phase].add(phase_ns_[phase]);
    other_ns = less(other_ns, phase_ns_[phase]);
  }
  phase_ns_per_step_[0].add(other_ns);
  if (ledger_ != nullptr) {
    ledger_->takeStep({begin_ns_, end_ns, exposed_ns_, exposures_});
  }
}

void StepSummary::takePhase(const Record& record) {
  uint64_t exposed_ns = 0;
  for (const Exposure& exposure : pending_) {
    exposed_ns +=
        exposure.begin_ns >= record.timestamp_ns ? exposure.waited_ns : 0;
  }
  pending_.clear();
  if (record.aux < kPhases) {
    phase_ns_[record.aux] +=
        less(less(record.value, record.timestamp_ns), exposed_ns);
  }
}

void StepSummary::takeWait(const Record& record) {
  const uint64_t waited_ns = less(record.value, record.timestamp_ns);
  if (finalize_.kind != Kind::kNone) {
    waited_in_finalize_ns_ += waited_ns;
  }
  expose({record.timestamp_ns, record.value, waited_ns, record.op_id});
}

// Wall time less CPU time of the thread, less the waits counted already.
void StepSummary::takeFinalizeEnd(const Record& record) {
  const Record begin = finalize_;
  finalize_ = {};
  if (begin.kind == Kind::kNone || begin.op_id != record.op_id) {
    return;
  }
  const uint64_t wall_ns = less(record.timestamp_ns, begin.timestamp_ns);
  const uint64_t blocked_ns = less(wall_ns, less(record.value, begin.value));
  expose(
      {begin.timestamp_ns,
       record.timestamp_ns,
       less(blocked_ns, waited_in_finalize_ns_),
       0,
       record.op_id});
}

void StepSummary::expose(const Exposure& exposure) {
  exposed_ns_ += exposure.waited_ns;
  if (pending_.size() == kMaxPending) {
    pending_.back().waited_ns += exposure.waited_ns;
  } else {
    pending_.push_back(exposure);
  }
  if (ledger_ == nullptr) {
    return;
  }
  if (exposures_.size() == kMaxPending) {
    exposures_.back().op_id = kNoOperation;
  } else {
    exposures_.push_back(exposure);
  }
}

void StepSummary::appendJson(std::string& out) const {
  out += "\"steps\":";
  step_ns_.appendJson(out);
  out += ",\"exposed\":";
  exposed_ns_per_step_.appendJson(out);
  out += ",\"phases\":[";
  for (size_t phase = 0; phase < kPhases; ++phase) {
    out += phase == 0 ? "" : ",";
    phase_ns_per_step_[phase].appendJson(out);
  }
  out += "]";
}

} // namespace commprof
