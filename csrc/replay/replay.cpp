#include "replay/replay.h"

#include <algorithm>
#include <deque>

namespace commprof::replay {

namespace {

constexpr int32_t kNone = -1;

// Singly linked lists of numbers. A number is in at most one list.
class Chains {
 public:
  Chains(size_t lists, size_t numbers)
      : head_(lists, kNone), next_(numbers, kNone) {}

  void add(size_t list, size_t number) {
    next_[number] = head_[list];
    head_[list] = int32_t(number);
  }

  // Empties a list; calls `use` with each of its numbers.
  template <class Use>
  void take(size_t list, const Use& use) {
    int32_t number = head_[list];
    head_[list] = kNone;
    while (number != kNone) {
      const int32_t following = next_[size_t(number)];
      use(size_t(number));
      number = following;
    }
  }

 private:
  std::vector<int32_t> head_;
  std::vector<int32_t> next_;
};

// State of one replay. Only replayed rows have an index here, their "slot": a
// long run has many more rows.
class Run {
 public:
  Run(const Programs& programs, const Calls& calls, size_t marks)
      : programs_(programs),
        calls_(calls),
        ranks_(programs.begin.size()),
        marksOfRank_(marks),
        slot_(calls.outside.size(), kNone),
        at_(programs.first.begin(), programs.first.end() - 1),
        stood_(programs.begin.begin(), programs.begin.end()),
        marks_(ranks_ * marks, 0.0),
        missing_(calls.needed.first.size() - 1, 0),
        arrived_(calls.needed.first.size() - 1, 0.0),
        waiting_(0, 0),
        queued_(0, 0),
        chained_(0, 0) {
    for (size_t row = 0; row < slot_.size(); row++) {
      if (!calls.outside[row]) {
        slot_[row] = int32_t(rowOf_.size());
        rowOf_.push_back(int64_t(row));
      }
    }
    const size_t slots = rowOf_.size();
    done_.assign(slots, false);
    end_.assign(slots, 0.0);
    begins_.assign(slots, 0.0);
    waiting_ = Chains(slots, ranks_);
    queued_ = Chains(slots, slots);
    chained_ = Chains(slots, programs.chained.size());
    findNeeding();
  }

  bool go() {
    for (size_t number = 0; number < missing_.size(); number++) {
      prepare(number);
    }
    for (size_t k = 0; k < programs_.chained.size(); k++) {
      const int32_t after = slot_[size_t(programs_.after[k])];
      if (after != kNone) {
        chained_.add(size_t(after), k);
      }
    }
    for (size_t k = 0; k < programs_.chained.size(); k++) {
      const size_t after = size_t(programs_.after[k]);
      if (slot_[after] == kNone) {
        issued(
            programs_.chained[k], double(calls_.end[after]) + programs_.lag[k]);
      }
    }
    settle();
    for (size_t rank = 0; rank < ranks_; rank++) {
      ready_.push_back(rank);
    }
    while (!ready_.empty()) {
      const size_t rank = ready_.front();
      ready_.pop_front();
      advance(rank);
    }
    for (size_t rank = 0; rank < ranks_; rank++) {
      if (at_[rank] < programs_.first[rank + 1]) {
        return false;
      }
    }
    return true;
  }

  std::vector<double> marks() && {
    return std::move(marks_);
  }

 private:
  // Lists, for each slot, the conditions that need its row.
  void findNeeding() {
    const auto& needed = calls_.needed;
    firstNeeding_.assign(rowOf_.size() + 1, 0);
    for (const int64_t row : needed.rows) {
      if (slot_[size_t(row)] != kNone) {
        firstNeeding_[size_t(slot_[size_t(row)]) + 1]++;
      }
    }
    for (size_t k = 1; k < firstNeeding_.size(); k++) {
      firstNeeding_[k] += firstNeeding_[k - 1];
    }
    needing_.resize(size_t(firstNeeding_.back()));
    std::vector<int64_t> place(firstNeeding_.begin(), firstNeeding_.end() - 1);
    for (size_t number = 0; number + 1 < needed.first.size(); number++) {
      for (int64_t k = needed.first[number]; k < needed.first[number + 1];
           k++) {
        const int32_t slot = slot_[size_t(needed.rows[size_t(k)])];
        if (slot != kNone) {
          needing_[size_t(place[size_t(slot)]++)] = int32_t(number);
        }
      }
    }
  }

  // Begins with the issues of a condition that are not replayed: their times
  // are as recorded. Counts the other issues as missing. Opens the condition if
  // none is missing.
  void prepare(size_t number) {
    const auto& needed = calls_.needed;
    int64_t latest = 0;
    bool known = false;
    for (int64_t k = needed.first[number]; k < needed.first[number + 1]; k++) {
      const size_t row = size_t(needed.rows[size_t(k)]);
      if (slot_[row] != kNone) {
        missing_[number]++;
      } else {
        latest =
            known ? std::max(latest, calls_.issue[row]) : calls_.issue[row];
        known = true;
      }
    }
    arrived_[number] = double(latest);
    if (missing_[number] == 0) {
      open(number);
    }
  }

  void advance(size_t rank) {
    for (int64_t& at = at_[rank]; at < programs_.first[rank + 1]; at++) {
      const size_t k = size_t(at);
      const int64_t row = programs_.row[k];
      const double now = programs_.own[k] + stood_[rank];
      switch (Event(programs_.kind[k])) {
        case Event::Issue:
          issued(row, now);
          settle();
          break;
        case Event::Mark:
          marks_[rank * marksOfRank_ + size_t(row)] = now;
          break;
        case Event::Stand:
          stood_[rank] += programs_.extra[k];
          break;
        case Event::Wait: {
          const int32_t slot = slot_[size_t(row)];
          if (slot != kNone && !done_[size_t(slot)]) {
            waiting_.add(size_t(slot), rank);
            return;
          }
          const double end = slot == kNone ? double(calls_.end[size_t(row)])
                                           : end_[size_t(slot)];
          stood_[rank] += std::max(0.0, end + programs_.extra[k] - now);
          break;
        }
      }
    }
  }

  void issued(int64_t row, double now) {
    const int32_t slot = slot_[size_t(row)];
    if (slot == kNone) {
      return;
    }
    const int64_t last = firstNeeding_[size_t(slot) + 1];
    for (int64_t k = firstNeeding_[size_t(slot)]; k < last; k++) {
      const size_t number = size_t(needing_[size_t(k)]);
      arrived_[number] = std::max(arrived_[number], now);
      if (--missing_[number] == 0) {
        open(number);
      }
    }
  }

  void open(size_t number) {
    const auto& opens = calls_.opens;
    for (int64_t k = opens.first[number]; k < opens.first[number + 1]; k++) {
      const int32_t slot = slot_[size_t(opens.rows[size_t(k)])];
      if (slot != kNone && !done_[size_t(slot)]) {
        begin(size_t(slot), arrived_[number]);
      }
    }
  }

  void begin(size_t slot, double now) {
    const int64_t before = calls_.before[size_t(rowOf_[slot])];
    double queued = 0.0;
    if (before >= 0) {
      const int32_t earlier = slot_[size_t(before)];
      if (earlier != kNone && !done_[size_t(earlier)]) {
        begins_[slot] = now;
        queued_.add(size_t(earlier), slot);
        return;
      }
      queued = earlier == kNone ? double(calls_.end[size_t(before)])
                                : end_[size_t(earlier)];
    }
    done_[slot] = true;
    end_[slot] = std::max(now, queued) + calls_.transfer[size_t(rowOf_[slot])];
    completed_.push_back(slot);
  }

  // Handles the consequences of completed collectives until no completed
  // collective is left.
  void settle() {
    while (!completed_.empty()) {
      const size_t slot = completed_.back();
      completed_.pop_back();
      queued_.take(slot, [&](size_t later) { begin(later, begins_[later]); });
      chained_.take(slot, [&](size_t k) {
        issued(programs_.chained[k], end_[slot] + programs_.lag[k]);
      });
      waiting_.take(slot, [&](size_t rank) { ready_.push_back(rank); });
    }
  }

  const Programs& programs_;
  const Calls& calls_;
  size_t ranks_;
  size_t marksOfRank_;
  std::vector<int32_t> slot_; // [row]; kNone: not replayed
  std::vector<int64_t> rowOf_; // [slot]: its row
  std::vector<bool> done_;
  std::vector<double> end_;
  std::vector<double> begins_; // [slot]: start of a wait for an earlier row
  std::vector<int64_t> at_; // [rank]: its next event
  std::vector<double> stood_;
  std::vector<double> marks_;
  // [condition]: needed rows that are not issued yet.
  std::vector<int32_t> missing_;
  std::vector<double> arrived_; // [condition]: the latest issue so far
  std::vector<int64_t> firstNeeding_;
  std::vector<int32_t> needing_;
  Chains waiting_; // [slot]: ranks that wait for it
  Chains queued_; // [slot]: slots that begin once it is complete
  Chains chained_; // [slot]: indices in `programs_.chained`
  std::vector<size_t> completed_;
  std::deque<size_t> ready_;
};

} // namespace

std::optional<std::vector<double>> replay(
    const Programs& programs,
    const Calls& calls,
    size_t marks) {
  Run run(programs, calls, marks);
  if (!run.go()) {
    return std::nullopt;
  }
  return std::move(run).marks();
}

} // namespace commprof::replay
