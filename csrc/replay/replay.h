// Replays the recorded programs of all ranks, which wait for each other in
// collectives. commprof/analysis/replay/engine.py states the rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace commprof::replay {

// The values are those of commprof/analysis/replay/program.py.
enum class Event : int64_t { Issue = 0, Wait = 1, Stand = 2, Mark = 3 };

// The events of all ranks, one rank after the other; times in ns.
struct Programs {
  // Index of each rank's first event; the last entry is the total number of
  // events.
  std::span<const int64_t> first;
  std::span<const int64_t> kind;
  std::span<const int64_t> row;
  std::span<const double> begin; // [rank]: begin of its program
  // Row chained[k] is issued when row after[k] is complete and lag[k] ns have
  // passed.
  std::span<const int64_t> chained;
  std::span<const int64_t> after;
  std::span<const double> lag;
};

// Lists of rows: list k goes from index first[k] to first[k + 1].
struct Lists {
  std::span<const int64_t> first;
  std::span<const int64_t> rows;
};

// Each rank's call of a collective is one row. Condition k is met when all rows
// in list k of `needed` are issued. The rows in list k of `opens` cannot begin
// earlier.
struct Calls {
  Lists needed;
  Lists opens;
  // [row]: the row that must be complete before this row begins; -1: none.
  std::span<const int64_t> before;
  std::span<const int64_t> issue;
  std::span<const int64_t> end; // as recorded
  std::span<const bool> outside; // true: not replayed, keeps its `end`
};

// Inputs that may differ between the replays of one plan. Times in ns.
struct Changed {
  std::span<const double> own; // [event]: the rank's own time at the event
  // [event]: for a wait, the time from the row's completion until the rank
  // continues. For a stand, the length of the pause.
  std::span<const double> extra;
  std::span<const double> transfer; // [row]
  // [row]: true if the transfer takes no time. A rank that waits for such a row
  // continues no later than the row's completion. Empty: false for all rows.
  std::span<const bool> free;
};

// State of a replayed row. This is one struct rather than one array per field,
// because the rows of a collective are far apart in such arrays.
struct State {
  // Completion time. While the row waits for row `before`: the begin of this
  // wait.
  double time;
  double transfer;
  int32_t before;
  int32_t queued; // a slot that begins once this one is complete
  int32_t nextQueued; // another slot that begins once `before` is complete
  int32_t waiting : 30; // a rank that waits for this row
  uint32_t done : 1;
  uint32_t free : 1;
};
static_assert(sizeof(State) == 32);

// Programs and calls, prepared for several replays, one at a time.
class Plan {
 public:
  // `marks`: number of marks of each rank.
  Plan(const Programs& programs, const Calls& calls, size_t marks);

  // Returns the times of all marks, rank by rank. Returns nothing if the ranks
  // wait for each other forever.
  std::optional<std::vector<double>> times(const Changed& changed);

 private:
  friend class Run;

  // Returns the slot of a replayed row: a number from 0 on. For any other row,
  // returns a number below kNone; fixed(number) is the row's index in
  // fixedRow_.
  int32_t slotOrFixed(int64_t row);
  void findNeeding(const Lists& needed);
  void findOpening(const Lists& opens);
  void prepare(const Calls& calls);

  size_t ranks_;
  size_t marks_;
  std::vector<int64_t> first_; // [rank]: its first event
  std::vector<double> begin_;
  std::vector<Event> kind_; // [event]
  std::vector<int32_t> target_; // [event]: slot, fixed row or mark
  std::vector<int32_t> slot_; // [row]; empty after construction
  std::vector<int64_t> rowOf_; // [slot]
  std::vector<int32_t> before_; // [slot]: slot, fixed row or kNone
  std::vector<int64_t> fixedRow_;
  std::vector<double> fixedEnd_;
  // [slot]: the condition that needs the slot; kNone: no condition. A number
  // below kNone: several conditions. With k = fixed(number), they are in
  // several_ from index severalFirst_[k] to severalFirst_[k + 1].
  std::vector<int32_t> needing_;
  std::vector<int64_t> severalFirst_;
  std::vector<int32_t> several_;
  std::vector<int64_t> opensFirst_; // [condition]
  std::vector<int32_t> opens_; // slots
  std::vector<int32_t> missing_; // [condition]: number of replayed rows
  std::vector<double> arrived_; // [condition]: latest issue of the other rows
  // For each chained row: its slot (kNone if not replayed), the slot or fixed
  // row that it follows, and the lag in ns.
  std::vector<int32_t> chained_;
  std::vector<int32_t> after_;
  std::vector<double> lag_;
  std::vector<State> state_; // [slot]
};

} // namespace commprof::replay
