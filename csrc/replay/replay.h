// Replays the recorded programs of all ranks, which wait for each other in
// collectives. The rules of the model are stated in
// commprof/analysis/replay/engine.py. Here each time is a single number.
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
  // Index of each rank's first event; the last entry is the total number of
  // events.
  std::span<const int64_t> first;
  std::span<const int64_t> kind;
  std::span<const int64_t> row;
  std::span<const double> own;
  std::span<const double> extra;
  std::span<const double> begin; // [rank]: begin of its program
  // Row chained[k] is issued lag[k] after row after[k] has completed.
  std::span<const int64_t> chained;
  std::span<const int64_t> after;
  std::span<const double> lag;
};

// Lists of rows: list k goes from index first[k] to first[k + 1].
struct Lists {
  std::span<const int64_t> first;
  std::span<const int64_t> rows;
};

// The collectives of all ranks. Each call of a rank is one row.
struct Calls {
  Lists needed; // list k: the rows that must be issued ...
  Lists opens; // ... before these rows can begin
  // [row]: the row that must be complete before this row begins; -1: none.
  std::span<const int64_t> before;
  std::span<const int64_t> issue;
  std::span<const int64_t> end; // as recorded
  std::span<const double> transfer;
  std::span<const bool> outside; // not replayed: keeps its `end`
};

// Returns the times of all marks, rank by rank, with `marks` times for each
// rank. Returns nothing if the ranks wait for each other forever.
std::optional<std::vector<double>> replay(
    const Programs& programs,
    const Calls& calls,
    size_t marks);

} // namespace commprof::replay
