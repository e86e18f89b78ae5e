#include "replay/replay.h"

#include <algorithm>
#include <deque>

namespace commprof::replay {

namespace {

constexpr int32_t kNone = -1;

int32_t asFixed(size_t index) {
  return -2 - int32_t(index);
}

size_t fixed(int32_t number) {
  return size_t(-2 - int64_t(number));
}

} // namespace

Plan::Plan(const Programs& programs, const Calls& calls, size_t marks)
    : ranks_(programs.begin.size()),
      marks_(marks),
      first_(programs.first.begin(), programs.first.end()),
      begin_(programs.begin.begin(), programs.begin.end()),
      slot_(calls.outside.size(), kNone),
      lag_(programs.lag.begin(), programs.lag.end()) {
  for (size_t row = 0; row < slot_.size(); row++) {
    if (!calls.outside[row]) {
      slot_[row] = int32_t(rowOf_.size());
      rowOf_.push_back(int64_t(row));
    }
  }
  findNeeding(calls.needed);
  findOpening(calls.opens);
  prepare(calls);
  before_.reserve(rowOf_.size());
  for (const int64_t row : rowOf_) {
    const int64_t before = calls.before[size_t(row)];
    before_.push_back(before < 0 ? kNone : slotOrFixed(before));
  }
  kind_.reserve(programs.kind.size());
  target_.reserve(programs.kind.size());
  for (size_t k = 0; k < programs.kind.size(); k++) {
    const auto kind = Event(programs.kind[k]);
    const int64_t row = programs.row[k];
    kind_.push_back(kind);
    if (kind == Event::Issue) {
      target_.push_back(slot_[size_t(row)]);
    } else {
      target_.push_back(kind == Event::Wait ? slotOrFixed(row) : int32_t(row));
    }
  }
  for (size_t k = 0; k < programs.chained.size(); k++) {
    chained_.push_back(slot_[size_t(programs.chained[k])]);
    after_.push_back(slotOrFixed(programs.after[k]));
  }
  fixedEnd_.reserve(fixedRow_.size());
  for (const int64_t row : fixedRow_) {
    fixedEnd_.push_back(double(calls.end[size_t(row)]));
  }
  slot_ = std::vector<int32_t>();
}

int32_t Plan::slotOrFixed(int64_t row) {
  const int32_t slot = slot_[size_t(row)];
  if (slot != kNone) {
    return slot;
  }
  fixedRow_.push_back(row);
  return asFixed(fixedRow_.size() - 1);
}

void Plan::findNeeding(const Lists& needed) {
  std::vector<int32_t> count(rowOf_.size(), 0);
  for (const int64_t row : needed.rows) {
    if (slot_[size_t(row)] != kNone) {
      count[size_t(slot_[size_t(row)])]++;
    }
  }
  needing_.assign(rowOf_.size(), kNone);
  severalFirst_.push_back(0);
  for (size_t slot = 0; slot < count.size(); slot++) {
    if (count[slot] > 1) {
      needing_[slot] = asFixed(severalFirst_.size() - 1);
      severalFirst_.push_back(severalFirst_.back() + count[slot]);
    }
  }
  several_.resize(size_t(severalFirst_.back()));
  std::vector<int64_t> place(severalFirst_.begin(), severalFirst_.end() - 1);
  for (size_t number = 0; number + 1 < needed.first.size(); number++) {
    for (int64_t k = needed.first[number]; k < needed.first[number + 1]; k++) {
      const int32_t slot = slot_[size_t(needed.rows[size_t(k)])];
      if (slot == kNone) {
        continue;
      }
      if (count[size_t(slot)] == 1) {
        needing_[size_t(slot)] = int32_t(number);
      } else {
        several_[size_t(place[fixed(needing_[size_t(slot)])]++)] =
            int32_t(number);
      }
    }
  }
}

void Plan::findOpening(const Lists& opens) {
  opensFirst_.push_back(0);
  for (size_t number = 0; number + 1 < opens.first.size(); number++) {
    for (int64_t k = opens.first[number]; k < opens.first[number + 1]; k++) {
      const int32_t slot = slot_[size_t(opens.rows[size_t(k)])];
      if (slot != kNone) {
        opens_.push_back(slot);
      }
    }
    opensFirst_.push_back(int64_t(opens_.size()));
  }
}

// Sets the initial state of each condition. Rows that are not replayed are
// issued at their recorded times; arrived_ is the latest of these times.
// missing_ is the number of replayed rows.
void Plan::prepare(const Calls& calls) {
  const auto& needed = calls.needed;
  for (size_t number = 0; number + 1 < needed.first.size(); number++) {
    int64_t latest = 0;
    bool known = false;
    int32_t missing = 0;
    for (int64_t k = needed.first[number]; k < needed.first[number + 1]; k++) {
      const size_t row = size_t(needed.rows[size_t(k)]);
      if (slot_[row] != kNone) {
        missing++;
      } else {
        latest = known ? std::max(latest, calls.issue[row]) : calls.issue[row];
        known = true;
      }
    }
    missing_.push_back(missing);
    arrived_.push_back(double(latest));
  }
}

class Run {
 public:
  Run(Plan& plan, const Changed& changed)
      : plan_(plan),
        changed_(changed),
        state_(plan.state_),
        missing_(plan.missing_),
        arrived_(plan.arrived_),
        at_(plan.first_.begin(), plan.first_.end() - 1),
        stood_(plan.begin_),
        nextWaiting_(plan.ranks_, kNone),
        marks_(plan.ranks_ * plan.marks_, 0.0) {
    state_.resize(plan.rowOf_.size());
    for (size_t slot = 0; slot < state_.size(); slot++) {
      const size_t row = size_t(plan.rowOf_[slot]);
      const bool isFree = !changed.free.empty() && changed.free[row];
      const double transfer = isFree ? 0.0 : changed.transfer[row];
      state_[slot] = {
          .time = 0.0,
          .transfer = transfer,
          .before = plan.before_[slot],
          .queued = kNone,
          .nextQueued = kNone,
          .waiting = kNone,
          .done = 0,
          .free = isFree};
    }
    if (!plan.chained_.empty()) {
      chainedHead_.assign(state_.size(), kNone);
      nextChained_.assign(plan.chained_.size(), kNone);
    }
  }

  bool go() {
    for (size_t number = 0; number < missing_.size(); number++) {
      if (missing_[number] == 0) {
        open(number);
      }
    }
    for (size_t k = 0; k < plan_.chained_.size(); k++) {
      const int32_t after = plan_.after_[k];
      if (after >= 0) {
        nextChained_[k] = chainedHead_[size_t(after)];
        chainedHead_[size_t(after)] = int32_t(k);
      }
    }
    for (size_t k = 0; k < plan_.chained_.size(); k++) {
      if (plan_.after_[k] < 0) {
        issued(
            plan_.chained_[k],
            plan_.fixedEnd_[fixed(plan_.after_[k])] + plan_.lag_[k]);
      }
    }
    settle();
    for (size_t rank = 0; rank < plan_.ranks_; rank++) {
      ready_.push_back(rank);
    }
    while (!ready_.empty()) {
      const size_t rank = ready_.front();
      ready_.pop_front();
      advance(rank);
    }
    for (size_t rank = 0; rank < plan_.ranks_; rank++) {
      if (at_[rank] < plan_.first_[rank + 1]) {
        return false;
      }
    }
    return true;
  }

  std::vector<double> marks() && {
    return std::move(marks_);
  }

 private:
  void advance(size_t rank) {
    for (int64_t& at = at_[rank]; at < plan_.first_[rank + 1]; at++) {
      const size_t k = size_t(at);
      const int32_t target = plan_.target_[k];
      const double now = changed_.own[k] + stood_[rank];
      switch (plan_.kind_[k]) {
        case Event::Issue:
          issued(target, now);
          settle();
          break;
        case Event::Mark:
          marks_[rank * plan_.marks_ + size_t(target)] = now;
          break;
        case Event::Stand:
          stood_[rank] += changed_.extra[k];
          break;
        case Event::Wait: {
          double end = 0.0;
          bool isFree = false;
          if (target >= 0) {
            State& row = state_[size_t(target)];
            if (!row.done) {
              nextWaiting_[rank] = row.waiting;
              row.waiting = int32_t(rank);
              return;
            }
            end = row.time;
            isFree = row.free != 0;
          } else {
            const size_t index = fixed(target);
            end = plan_.fixedEnd_[index];
            isFree = !changed_.free.empty() &&
                changed_.free[size_t(plan_.fixedRow_[index])];
          }
          const double extra =
              isFree ? std::min(changed_.extra[k], 0.0) : changed_.extra[k];
          stood_[rank] += std::max(0.0, end + extra - now);
          break;
        }
      }
    }
  }

  void issued(int32_t slot, double now) {
    if (slot == kNone) {
      return;
    }
    const int32_t needing = plan_.needing_[size_t(slot)];
    if (needing >= 0) {
      arrive(size_t(needing), now);
    } else if (needing != kNone) {
      const size_t index = fixed(needing);
      const int64_t last = plan_.severalFirst_[index + 1];
      for (int64_t k = plan_.severalFirst_[index]; k < last; k++) {
        arrive(size_t(plan_.several_[size_t(k)]), now);
      }
    }
  }

  void arrive(size_t number, double now) {
    arrived_[number] = std::max(arrived_[number], now);
    if (--missing_[number] == 0) {
      open(number);
    }
  }

  void open(size_t number) {
    const int64_t last = plan_.opensFirst_[number + 1];
    for (int64_t k = plan_.opensFirst_[number]; k < last; k++) {
      const size_t slot = size_t(plan_.opens_[size_t(k)]);
      if (!state_[slot].done) {
        begin(slot, arrived_[number]);
      }
    }
  }

  void begin(size_t slot, double now) {
    State& row = state_[slot];
    double queued = 0.0;
    if (row.before >= 0) {
      State& earlier = state_[size_t(row.before)];
      if (!earlier.done) {
        row.time = now;
        row.nextQueued = earlier.queued;
        earlier.queued = int32_t(slot);
        return;
      }
      queued = earlier.time;
    } else if (row.before != kNone) {
      queued = plan_.fixedEnd_[fixed(row.before)];
    }
    row.done = 1;
    row.time = std::max(now, queued) + row.transfer;
    completed_.push_back(slot);
  }

  void settle() {
    while (!completed_.empty()) {
      const size_t slot = completed_.back();
      completed_.pop_back();
      State& row = state_[slot];
      int32_t later = row.queued;
      row.queued = kNone;
      while (later != kNone) {
        const State& next = state_[size_t(later)];
        const size_t begun = size_t(later);
        later = next.nextQueued;
        begin(begun, next.time);
      }
      if (!chainedHead_.empty()) {
        int32_t k = chainedHead_[slot];
        chainedHead_[slot] = kNone;
        while (k != kNone) {
          const int32_t next = nextChained_[size_t(k)];
          issued(plan_.chained_[size_t(k)], row.time + plan_.lag_[size_t(k)]);
          k = next;
        }
      }
      int32_t rank = row.waiting;
      row.waiting = kNone;
      while (rank != kNone) {
        const int32_t next = nextWaiting_[size_t(rank)];
        ready_.push_back(size_t(rank));
        rank = next;
      }
    }
  }

  const Plan& plan_;
  const Changed& changed_;
  std::vector<State>& state_; // [slot]
  std::vector<int32_t> missing_; // [condition]: number of rows not issued yet
  std::vector<double> arrived_; // [condition]: time of the latest issue so far
  std::vector<int64_t> at_; // [rank]: its next event
  std::vector<double> stood_;
  // [rank]: the next rank in the list of ranks that wait for the same row.
  std::vector<int32_t> nextWaiting_;
  std::vector<double> marks_;
  std::vector<int32_t> chainedHead_; // [slot]: an index in `plan_.chained_`
  std::vector<int32_t> nextChained_;
  std::vector<size_t> completed_;
  std::deque<size_t> ready_;
};

std::optional<std::vector<double>> Plan::times(const Changed& changed) {
  Run run(*this, changed);
  if (!run.go()) {
    return std::nullopt;
  }
  return std::move(run).marks();
}

} // namespace commprof::replay
