// Computes when events happen if pieces of a rank's own time become longer or
// shorter. A rank's own time stops while the rank waits for communication.
// commprof/analysis/replay/program.py has the rules, and the same function in
// numpy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace commprof::replay {

// Points that cut the ranks' own time into pieces. A cut is the border of a
// step or phase, or the issue of a collective. Sorted by rank; times in ns.
struct Cuts {
  // Index of each rank's first cut; the last entry is the number of all cuts.
  std::span<const int64_t> first;
  std::span<const double> edge; // own time at each cut, ascending in a rank
  std::span<const bool> isIssue;
  // The cell of the piece after each cut: one number for its rank, step and
  // phase. Negative: the piece is in no step.
  std::span<const int64_t> cell;
  std::span<const double> length; // of the piece after each cut
};

// Events of all ranks, one rank after the other.
struct Moments {
  std::span<const int64_t> first; // index of each rank's first event
  std::span<const double> own; // own time at each event, ascending in a rank
  std::span<const int64_t> kind; // 0: an issue
};

// Returns, for each value, the index of the last edge of the same rank that is
// not above the value. If there is none, returns the index of the rank's first
// edge. `edges` and `values` ascend within each rank. `first` and `cuts`: index
// of each rank's first edge and first value.
std::vector<int64_t> lastUntil(
    std::span<const double> edges,
    std::span<const int64_t> first,
    std::span<const double> values,
    std::span<const int64_t> cuts);

// Scales the pieces of each cell to a total of wanted[cell] ns. Writes the new
// own time of each event to `result`. Pieces without a cell keep their lengths.
// A rank's issues must have the same order in `events` and in `cuts`.
void moveEvents(
    const Cuts& cuts,
    const Moments& events,
    std::span<const double> wanted,
    std::span<double> result);

} // namespace commprof::replay
