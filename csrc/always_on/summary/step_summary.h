// Histograms of how the steps of one rank spent their time. The figures equal
// those of commprof/analysis/step/exposure.py and breakdown.py; a test compares
// them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "always_on/summary/histogram.h"
#include "always_on/wait_ledger.h"
#include "core/process/pause_watch.h"
#include "core/record.h"

namespace commprof {

// Not thread-safe. take() may throw std::bad_alloc.
class StepSummary {
 public:
  static constexpr size_t kPhases = size_t(Phase::kOptimizer) + 1;

  // `ledger` gets the waits of each step that is counted; it may be null.
  explicit StepSummary(WaitLedger* ledger) : ledger_(ledger) {}

  // Takes each thread's records in the order in which the thread pushed them.
  // But take a pause before the records of its step and phase.
  void take(const Record& record);
  // Discards all steps so far, including the open step.
  void forgetSteps();
  // Discards the open step, because some of its records are missing.
  void forgetOpenStep() {
    open_ = false;
  }
  // Appends "steps", "exposed", "phases" and "paused" to a JSON object.
  void appendJson(std::string& out) const;

 private:
  void takeStep(const Record& record);
  void takePause(const Record& record);
  void takePhase(const Record& record);
  void takeWait(const Record& record);
  void takeFinalizeEnd(const Record& record);
  struct PhaseSpan {
    uint32_t phase;
    uint64_t begin_ns;
    uint64_t end_ns;
  };
  void expose(const Exposure& exposure);
  void cut(const PhaseSpan& span, const Exposure& exposure);
  void countStep(uint64_t end_ns);
  void cutPauses(uint64_t begin_ns, uint64_t end_ns);
  uint64_t pausedWithin(uint64_t begin_ns, uint64_t end_ns) const;

  WaitLedger* const ledger_;
  // Fields of the open step:
  bool open_ = false;
  uint32_t thread_ = 0; // thread of the steps; 0 before the first
  uint64_t step_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t exposed_ns_ = 0;
  // Time of each phase, without the exposed time in the phase.
  std::array<uint64_t, kPhases> phase_ns_{};
  // Waits that may lie in a phase that still runs: a phase is recorded only at
  // its end.
  std::vector<Exposure> pending_;
  // Phases of the step so far. A wait that begins in a phase may be recorded
  // after the phase.
  std::vector<PhaseSpan> spans_;
  std::vector<Exposure> exposures_;
  // Begin of the open finalisation; kind kNone if none is open.
  Record finalize_;
  uint64_t waited_in_finalize_ns_ = 0;
  std::vector<Pause> pauses_; // without the parts that lie in exposed waits
  std::array<uint64_t, kPhases> paused_ns_{}; // paused part of phase_ns_

  uint64_t complete_steps_ = 0;
  Histogram step_ns_;
  Histogram exposed_ns_per_step_;
  std::array<Histogram, kPhases> phase_ns_per_step_;
  std::array<uint64_t, kPhases> paused_in_steps_ns_{};
};

} // namespace commprof
