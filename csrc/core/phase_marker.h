// Marks step boundaries and the phases of a step.
#pragma once

#include <cstdint>

#include "core/record.h"

namespace commprof {

// Marks a step boundary at the present time. If `ended` is true, `step` ends
// here. Otherwise `step` begins here: at the start of capture, or after a
// pause. `found`: who placed the boundary, for example kStepDeclared.
void markStep(
    uint64_t step,
    bool ended,
    uint32_t found = kStepDeclared) noexcept;

// Marks one phase of a step. If markers are nested, only the outermost marker
// of a thread is recorded. Several threads may use one marker; each thread
// calls both begin() and end(). If an exception skips end(), the marker is
// dropped at the thread's next step boundary.
class PhaseMarker {
 public:
  explicit PhaseMarker(uint8_t phase) noexcept : phase_(phase) {}
  ~PhaseMarker();
  PhaseMarker(const PhaseMarker&) = delete;
  PhaseMarker& operator=(const PhaseMarker&) = delete;

  void begin() noexcept;
  // `samples`: number of samples in the batch that the phase read. The
  // outermost marker records the sum, or kSamplesUnknown if any number is
  // unknown.
  void end(uint32_t samples = 0) noexcept;

 private:
  const uint8_t phase_;
};

// Returns the present duration of one push(), including the reading of the
// clock: the mean over `count` records, in nanoseconds. The records are thrown
// away.
double recordCostNs(uint64_t count);

} // namespace commprof
