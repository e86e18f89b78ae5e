// Replays the recorded programs of all ranks, which wait for each other in
// collectives: the model of commprof/analysis/replay/engine.py, which states
// the rules, with one number per time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace commprof::replay {

// Kinds of events, as in commprof/analysis/replay/program.py.
enum class Event : int64_t { Issue = 0, Wait = 1, Stand = 2, Mark = 3 };

// The events of all ranks, one rank after the other; times in ns.
struct Programs {
  // Index of each rank's first event, then the number of all events.
  std::span<const int64_t> first;
  std::span<const int64_t> kind;
  std::span<const int64_t> row;
  std::span<const double> own;
  std::span<const double> extra;
  std::span<const double> begin; // by rank: begin of its program
  // Rows that follow the completion of the row `after` by `lag`.
  std::span<const int64_t> chained;
  std::span<const int64_t> after;
  std::span<const double> lag;
};

// Lists of rows: list k has the rows from first[k] to first[k + 1].
struct Lists {
  std::span<const int64_t> first;
  std::span<const int64_t> rows;
};

// The collectives of all ranks, one row per rank's call.
struct Calls {
  Lists needed; // the rows that must be issued before ...
  Lists opens; // ... these can begin
  std::span<const int64_t> before; // a row to complete first; -1: none
  std::span<const int64_t> issue;
  std::span<const int64_t> end; // as recorded
  std::span<const double> transfer;
  std::span<const bool> outside; // not replayed: times are as recorded
};

// Returns the times of all ranks' marks, rank by rank, `marks` of each; nothing
// if the ranks wait for each other forever.
std::optional<std::vector<double>> replay(
    const Programs& programs,
    const Calls& calls,
    size_t marks);

} // namespace commprof::replay
