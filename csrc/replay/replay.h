// Replays the recorded programs of all ranks, which wait for each other in
// collectives. The rules of the model are stated in
// commprof/analysis/replay/engine.py. There, a time can also be an array with
// one value for each of many steps; here, each time is a single number.
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

// The collectives of all ranks. Each call of a rank is one row. Condition k is
// that all rows in list k of `needed` are issued. Before that, no row in list k
// of `opens` can begin.
struct Calls {
  Lists needed;
  Lists opens;
  // [row]: the row that must be complete before this row begins; -1: none.
  std::span<const int64_t> before;
  std::span<const int64_t> issue;
  std::span<const int64_t> end; // as recorded
  std::span<const bool> outside; // not replayed: keeps its `end`
};

// What may differ between the replays of one plan; times in ns.
struct Changed {
  std::span<const double> own; // [event]: the rank's own time at the event
  // [event]: for a wait, how long after the row's completion the rank goes on;
  // for a stand, how long the rank stands still.
  std::span<const double> extra;
  std::span<const double> transfer; // [row]
  // [row]: true if the transfer takes no time, and a rank that waits for the
  // row goes on at its completion at the latest. Empty: false for all rows.
  std::span<const bool> free;
};

// State of a replayed row, all in one place of memory. With one array per
// field, each field of a collective's rows would be another access to distant
// memory: neighbours in an array are rows of the same rank, not of the same
// collective.
struct State {
  // Completion time; while the row waits for the completion of row `before`,
  // the time at which this wait began.
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

  // Returns the number that stands for a row in this plan. Replayed rows have
  // numbers from 0 on, their "slots"; there are no slots for other rows,
  // because a long run has many more of them. For a row that is not replayed,
  // the number is below kNone, and fixed(number) is the row's index in
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
  std::vector<int32_t> slot_; // [row]; emptied once prepared
  std::vector<int64_t> rowOf_; // [slot]
  std::vector<int32_t> before_; // [slot]: slot, fixed row or kNone
  std::vector<int64_t> fixedRow_;
  std::vector<double> fixedEnd_;
  // [slot]: the only condition that needs it; kNone if none does. If several
  // do, a number below kNone: for k = fixed(number), several_ has these
  // conditions from index severalFirst_[k] to severalFirst_[k + 1].
  std::vector<int32_t> needing_;
  std::vector<int64_t> severalFirst_;
  std::vector<int32_t> several_;
  std::vector<int64_t> opensFirst_; // [condition]
  std::vector<int32_t> opens_; // slots
  std::vector<int32_t> missing_; // [condition]: needed rows that are replayed
  std::vector<double> arrived_; // [condition]: latest issue of its other rows
  // [chained row]: its slot (kNone if not replayed), the slot or fixed row that
  // it follows, and by how much.
  std::vector<int32_t> chained_;
  std::vector<int32_t> after_;
  std::vector<double> lag_;
  std::vector<State> state_; // [slot], of the replay in progress
};

} // namespace commprof::replay
