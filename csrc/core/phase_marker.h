// Step boundaries and phases of a step, marked by the training thread.
#pragma once

#include <cstdint>

#include "core/record.h"

namespace commprof {

// Marks a step boundary now. If `ended`, `step` ends at this boundary, and the
// next step begins. Otherwise no step ends, and `step` itself begins (at the
// start of capture, or after a pause).
// `found` tells who placed the boundary: kStepDeclared or another constant of
// its enum.
void markStep(
    uint64_t step,
    bool ended,
    uint32_t found = kStepDeclared) noexcept;

// Marker of one phase of a step. Markers may nest; only a thread's outermost
// marker is recorded, so that the phases of a step never overlap. Threads may
// share a marker: each thread has its own nesting, and must call both begin()
// and end(). A marker that stays open, because an exception skipped its end(),
// is dropped at the next step boundary of its thread.
class PhaseMarker {
 public:
  explicit PhaseMarker(uint8_t phase) noexcept : phase_(phase) {}
  ~PhaseMarker();
  PhaseMarker(const PhaseMarker&) = delete;
  PhaseMarker& operator=(const PhaseMarker&) = delete;

  void begin() noexcept;
  // `samples`: number of samples of a batch read in the phase. The outermost
  // marker records the sum, or kSamplesUnknown if any number is unknown.
  void end(uint32_t samples = 0) noexcept;

 private:
  const uint8_t phase_;
};

// Measures how long one push() with its reading of the clock takes at present.
// Returns the mean over `count` records, in nanoseconds; the records are thrown
// away.
double recordCostNs(uint64_t count);

} // namespace commprof
