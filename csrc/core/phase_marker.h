// Step boundaries and phases, as the training thread declares them.
#pragma once

#include <cstdint>

namespace commprof {

// Marks a step boundary now. `step` ends here if `ended`; otherwise the
// boundary only opens the next step (start of capture, or after a pause).
void markStep(uint64_t step, bool ended) noexcept;

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
  void end() noexcept;

 private:
  const uint8_t phase_;
};

// Mean time of one push() with its clock reading, in nanoseconds, measured on
// this machine now with records that are thrown away.
double recordCostNs(uint64_t count);

} // namespace commprof
