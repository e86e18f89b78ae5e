#include "always_on/summary/step_summary.h"

#include <algorithm>
#include <cmath>

namespace commprof {

namespace {

// Largest number of waits that are kept. Further waits are added to the last
// one. A step with more waits is not split into waiting and transfer.
constexpr size_t kMaxPending = 1 << 14;
constexpr uint64_t kNoOperation = UINT64_MAX;
constexpr size_t kMaxSpans = 1 << 10; // largest number of kept phases
constexpr size_t kMaxPauses = 1 << 10; // further pauses are left out

uint64_t less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

} // namespace

void StepSummary::take(const Record& record) {
  if (record.kind == Kind::kStep) {
    takeStep(record);
    return;
  }
  if (record.kind == Kind::kPause) {
    takePause(record);
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

void StepSummary::forgetSteps() {
  forgetOpenStep();
  complete_steps_ = 0;
  step_ns_ = {};
  exposed_ns_per_step_ = {};
  phase_ns_per_step_ = {};
  paused_in_steps_ns_ = {};
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
  spans_.clear();
  exposures_.clear();
  finalize_ = {};
  paused_ns_ = {};
  std::erase_if(pauses_, [&](const Pause& pause) {
    return pause.end_ns <= record.timestamp_ns;
  });
}

void StepSummary::takePause(const Record& record) {
  if (record.value > record.timestamp_ns && pauses_.size() < kMaxPauses) {
    pauses_.push_back({record.timestamp_ns, record.value});
  }
}

uint64_t StepSummary::pausedWithin(uint64_t begin_ns, uint64_t end_ns) const {
  uint64_t total_ns = 0;
  for (const Pause& pause : pauses_) {
    total_ns += less(
        std::min(pause.end_ns, end_ns), std::max(pause.begin_ns, begin_ns));
  }
  return total_ns;
}

void StepSummary::cutPauses(uint64_t begin_ns, uint64_t end_ns) {
  const size_t count = pauses_.size();
  for (size_t i = 0; i < count; ++i) {
    const Pause pause = pauses_[i];
    if (pause.begin_ns >= end_ns || pause.end_ns <= begin_ns) {
      continue;
    }
    // Keeps the parts of the pause before begin_ns and after end_ns.
    pauses_[i].end_ns = std::max(pause.begin_ns, begin_ns);
    if (pause.end_ns > end_ns) {
      pauses_.push_back({end_ns, pause.end_ns});
    }
  }
}

// The first step is warm-up: DDP rebuilds its buckets after it.
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
  uint64_t paused_in_other_ns = pausedWithin(begin_ns_, end_ns);
  for (size_t phase = 1; phase < kPhases; ++phase) {
    paused_in_steps_ns_[phase] += paused_ns_[phase];
    paused_in_other_ns = less(paused_in_other_ns, paused_ns_[phase]);
  }
  paused_in_steps_ns_[0] += paused_in_other_ns;
  if (ledger_ != nullptr) {
    ledger_->takeStep({begin_ns_, end_ns, exposed_ns_, exposures_});
  }
}

void StepSummary::takePhase(const Record& record) {
  if (record.aux >= kPhases) {
    return;
  }
  const PhaseSpan span{record.aux, record.timestamp_ns, record.value};
  phase_ns_[span.phase] += less(span.end_ns, span.begin_ns);
  paused_ns_[span.phase] += pausedWithin(span.begin_ns, span.end_ns);
  for (const Exposure& exposure : pending_) {
    cut(span, exposure);
  }
  std::erase_if(pending_, [&](const Exposure& exposure) {
    return exposure.end_ns <= span.end_ns;
  });
  if (spans_.size() == kMaxSpans) {
    spans_.clear();
  }
  spans_.push_back(span);
}

// Subtracts from a phase's time the part of the waiting that lies in the phase.
void StepSummary::cut(const PhaseSpan& span, const Exposure& exposure) {
  const uint64_t length_ns = less(exposure.end_ns, exposure.begin_ns);
  const uint64_t within_ns = less(
      std::min(span.end_ns, exposure.end_ns),
      std::max(span.begin_ns, exposure.begin_ns));
  if (within_ns > 0) {
    const double share = double(within_ns) / double(length_ns);
    uint64_t& phase_ns = phase_ns_[span.phase];
    phase_ns = less(
        phase_ns, uint64_t(std::llround(share * double(exposure.waited_ns))));
  }
}

void StepSummary::takeWait(const Record& record) {
  const uint64_t waited_ns = less(record.value, record.timestamp_ns);
  if (finalize_.kind != Kind::kNone) {
    waited_in_finalize_ns_ += waited_ns;
  }
  expose({record.timestamp_ns, record.value, waited_ns, record.op_id});
}

// The waiting in a finalisation is the thread's wall time, minus its CPU time
// and minus waits that were already counted.
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
  cutPauses(exposure.begin_ns, exposure.end_ns);
  for (auto span = spans_.rbegin();
       span != spans_.rend() && span->end_ns > exposure.begin_ns;
       ++span) {
    cut(*span, exposure);
  }
  if (pending_.size() == kMaxPending) {
    pending_.back().end_ns = exposure.end_ns;
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
  out += "],\"paused\":[";
  for (size_t phase = 0; phase < kPhases; ++phase) {
    out += phase == 0 ? "" : ",";
    out += std::to_string(paused_in_steps_ns_[phase]);
  }
  out += "]";
}

} // namespace commprof
