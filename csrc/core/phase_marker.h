// Step boundaries and phases, as the training thread declares them.
#pragma once

#include <cstdint>

#include "core/record.h"

namespace commprof {

// Marks a step boundary now. `step` ends here if `ended`; otherwise the
// boundary only opens the next step (start of capture, or after a pause).
// `found` says who placed it, see kStepDeclared and its siblings.
void markStep(
    uint64_t step,
    bool ended,
    uint32_t found = kStepDeclared) noexcept;

// One phase of a step. Markers may nest; only the outermost one of a thread is
// recorded, so that the phases of a step never overlap. Threads may share a
// marker: each counts for itself, and begin() and end() come from the same
// thread. A marker left open (an exception that skipped its end) is forgotten
// at the next step boundary of its thread.
class PhaseMarker {
 public:
  explicit PhaseMarker(uint8_t phase) noexcept : phase_(phase) {}
  ~PhaseMarker();
  PhaseMarker(const PhaseMarker&) = delete;
  PhaseMarker& operator=(const PhaseMarker&) = delete;

  void begin() noexcept;
  // `samples`: what a batch that was read inside holds. The outermost marker's
  // record carries their sum, or kSamplesUnknown once one of them is.
  void end(uint32_t samples = 0) noexcept;

 private:
  const uint8_t phase_;
};

// Mean time of one push() with its clock reading, in nanoseconds, measured on
// this machine now with records that are thrown away.
double recordCostNs(uint64_t count);

} // namespace commprof
