// Moves events in their rank's own time (a clock that stops while the rank
// waits for communication), if pieces of this time become longer or shorter.
// commprof/analysis/replay/program.py has the rules, and the same function in
// numpy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace commprof::replay {

// Points at which the ranks' own time is cut into pieces: borders of steps and
// phases, and issues of collectives. One rank after the other; times in ns.
struct Cuts {
  // Index of each rank's first cut; the last entry is the number of all cuts.
  std::span<const int64_t> first;
  std::span<const double> edge; // own time at each cut, ascending in a rank
  std::span<const bool> isIssue;
  // Rank, step and phase of the piece after each cut, as one number; negative:
  // the piece is in no step.
  std::span<const int64_t> cell;
  std::span<const double> length; // of the piece after each cut
};

// Events of all ranks, one rank after the other.
struct Moments {
  std::span<const int64_t> first; // index of each rank's first event
  std::span<const double> own; // own time at each event, ascending in a rank
  std::span<const int64_t> kind; // 0: an issue
};

// Returns, per value, the index of the rank's last edge that is not above the
// value; if all edges are above it, the index of the rank's first edge. `edges`
// and `values` hold one rank after the other, in ascending order; `first` and
// `cuts` are the indices of each rank's first edge and first value.
std::vector<int64_t> lastUntil(
    std::span<const double> edges,
    std::span<const int64_t> first,
    std::span<const double> values,
    std::span<const int64_t> cuts);

// Writes to `result` the own time that each event has if the pieces of each
// cell together take wanted[cell] ns; pieces without a cell keep their lengths.
// The issues among a rank's events are in the same order as the issues among
// its cuts.
void moveEvents(
    const Cuts& cuts,
    const Moments& events,
    std::span<const double> wanted,
    std::span<double> result);

} // namespace commprof::replay
