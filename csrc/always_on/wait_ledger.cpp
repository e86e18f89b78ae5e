#include "always_on/wait_ledger.h"

#include <algorithm>
#include <utility>

namespace commprof {

namespace {

bool isOver(uint64_t since_ns, uint64_t now_ns) noexcept {
  return now_ns > since_ns && now_ns - since_ns > WaitLedger::kPatienceNs;
}

} // namespace

WaitLedger::WaitLedger(ArrivalExchange& exchange)
    : exchange_(exchange), entries_(kMaxOpen), tasks_(kMaxTasks) {}

// Returns the entry of an operation; null if a later operation, with a higher
// id, has taken the entry.
WaitLedger::Entry* WaitLedger::place(uint64_t op_id) noexcept {
  Entry& entry = entries_[op_id % kMaxOpen];
  if (entry.op_id > op_id) {
    return nullptr;
  }
  if (entry.op_id < op_id) {
    entry = {};
    entry.op_id = op_id;
  }
  return &entry;
}

const WaitLedger::Entry* WaitLedger::find(uint64_t op_id) const noexcept {
  const Entry& entry = entries_[op_id % kMaxOpen];
  return entry.op_id == op_id && entry.issue_ns != 0 ? &entry : nullptr;
}

void WaitLedger::takeIssue(const Record& record, uint32_t operation) {
  const IssuedOp issued_as{record.group, record.seq, record.op, record.aux};
  if (!issued_as.isNumbered()) {
    return;
  }
  const bool on_device = (record.flags & kDeviceAsync) != 0;
  Entry* entry = place(record.op_id);
  if (entry == nullptr) {
    if (!on_device) {
      exchange_.post(issued_as, record.timestamp_ns);
    }
    ++unknown_;
    return;
  }
  entry->issued = true;
  entry->on_device = on_device;
  entry->size_bytes = record.bytes_in;
  entry->issued_as = issued_as;
  entry->operation = operation;
  // A message belongs to no bucket, so it counts in no backward pass.
  entry->task = isPointToPoint(record.op) ? 0 : record.value;
  if (!on_device) {
    arrive(*entry, record.timestamp_ns);
  } else if (entry->ready_ns != 0) {
    arrive(*entry, entry->ready_ns);
  }
}

void WaitLedger::takeReady(const Record& record) {
  Entry* entry = place(record.op_id);
  if (entry != nullptr && entry->ready_ns == 0) {
    entry->ready_ns = record.timestamp_ns;
    if (entry->issued) {
      arrive(*entry, record.timestamp_ns);
    }
  }
}

void WaitLedger::arrive(Entry& entry, uint64_t at_ns) {
  exchange_.post(entry.issued_as, at_ns);
  entry.issue_ns = at_ns;
  queue_.push_back(entry.op_id);
  if (entry.task != 0) {
    const uint64_t number = entry.task - 1;
    Task& task = tasks_[number % kMaxTasks];
    if (task.number != number) {
      task.number = number;
      task.op_ids.clear();
    }
    // One id more than kMaxBuckets shows that there were too many buckets.
    if (task.op_ids.size() <= kMaxBuckets) {
      task.op_ids.push_back(entry.op_id);
    }
  }
}

uint64_t WaitLedger::taskOf(uint64_t op_id) const noexcept {
  const Entry& entry = entries_[op_id % kMaxOpen];
  return entry.op_id == op_id ? entry.task : 0;
}

bool WaitLedger::bucketEnds(
    uint64_t graph_task,
    uint64_t begin_ns,
    std::vector<BucketEnd>& found) const {
  found.clear();
  const Task& task = tasks_[graph_task % kMaxTasks];
  if (task.number != graph_task) {
    return true;
  }
  bool complete = true;
  for (const uint64_t op_id : task.op_ids) {
    const Entry* entry = find(op_id);
    if (entry == nullptr || entry->end_ns == 0) {
      // If a later operation has taken the entry, the end stays unknown.
      complete = complete && entry == nullptr;
      continue;
    }
    found.push_back(
        {double(int64_t(entry->end_ns - begin_ns)), double(entry->size_bytes)});
  }
  return complete;
}

void WaitLedger::takeEnd(const Record& record) {
  if (Entry* entry = place(record.op_id)) {
    entry->end_ns = record.timestamp_ns;
  }
}

void WaitLedger::takeWait(const Record& record) {
  const bool shows_end = isPointToPoint(record.op) ||
      record.value >= record.timestamp_ns + kBlockedNs;
  Entry* entry = shows_end ? place(record.op_id) : nullptr;
  if (entry != nullptr && entry->waited_until_ns == 0) {
    entry->waited_until_ns = record.value;
  }
}

// Returns 0 while the end is unknown. On the host, the end of a wait shows the
// end of a message. Once no other report is expected (`over`), the end of a
// wait also shows the end of a collective, because gloo's reduce-scatter
// reports only to the waiting thread.
uint64_t WaitLedger::endOf(const Entry& entry, bool over) noexcept {
  const bool by_wait =
      !entry.on_device && (over || isPointToPoint(entry.issued_as.op));
  return entry.end_ns == 0 && by_wait ? entry.waited_until_ns : entry.end_ns;
}

void WaitLedger::takeStep(StepWaits&& step) {
  if (steps_.size() == kMaxSteps) {
    countUnsplit(steps_.front());
    steps_.pop_front();
    drained_steps_ -= drained_steps_ > 0;
  }
  steps_.push_back(std::move(step));
}

void WaitLedger::countUnsplit(const StepWaits& step) noexcept {
  ++unsplit_steps_;
  unsplit_ns_ += step.exposed_ns;
}

void WaitLedger::forgetSteps() {
  steps_.clear();
  drained_steps_ = 0;
  unsplit_steps_ = 0;
  unsplit_ns_ = 0;
  exposed_wait_ = {};
  exposed_transfer_ = {};
  late_.forgetExposed();
}

const std::vector<WaitLedger::Split>& WaitLedger::resolve(uint64_t now_ns) {
  followClock();
  splits_.clear();
  std::deque<uint64_t> missing;
  for (const uint64_t op_id : queue_) {
    Entry& entry = entries_[op_id % kMaxOpen];
    if (entry.op_id != op_id) {
      ++unknown_;
    } else if (!settle(entry, now_ns)) {
      missing.push_back(op_id);
    }
  }
  queue_.swap(missing);
  // The ends of a step's collectives are in other threads' rings, and may be
  // drained later than the step. So the next call settles the steps of this
  // drain.
  drained_steps_ = now_ns == UINT64_MAX ? steps_.size() : drained_steps_;
  while (drained_steps_ > 0 && settle(steps_.front(), now_ns)) {
    steps_.pop_front();
    --drained_steps_;
  }
  drained_steps_ = steps_.size();
  return splits_;
}

// Converts exposed times to rank 0's clock. The offset becomes known only after
// the first steps, and may change later. If a clock jumps, earlier times move
// too; this is accepted.
void WaitLedger::followClock() {
  links_ = exchange_.links();
  if (links_.clock_known) {
    late_.moveExposed(
        int64_t(uint64_t(links_.clock_offset_ns) - uint64_t(clock_offset_ns_)));
    clock_offset_ns_ = links_.clock_offset_ns;
  }
}

// Returns false if more may become known later.
bool WaitLedger::settle(Entry& entry, uint64_t now_ns) {
  const bool over = isOver(entry.issue_ns, now_ns);
  const uint64_t end_ns = entry.end_ns = endOf(entry, over);
  if (end_ns == 0 && !over && mayBeDoneEarly(entry.issued_as.op)) {
    // Waits for the end first, because a rank that arrives after the
    // operation's end did not delay the operation.
    return false;
  }
  if (entry.state == State::kOpen) {
    ArrivalBoard::Last last;
    const uint64_t done_ns = end_ns == 0 ? UINT64_MAX : end_ns;
    const ArrivalBoard::State found =
        exchange_.last(entry.issued_as, entry.issue_ns, done_ns, last);
    const bool is_partial = found == ArrivalBoard::State::kPartial;
    if (found == ArrivalBoard::State::kKnown || (is_partial && over)) {
      entry.state = State::kKnown;
      entry.last_ns = last.at_ns;
      entry.last_rank = last.rank;
      ++known_;
      partial_ += is_partial;
      if (last.clock_error_ns > 0) {
        clock_error_.add(last.clock_error_ns);
      }
    } else if (
        over || (found != ArrivalBoard::State::kMissing && !is_partial)) {
      entry.state = State::kUnknown;
      ++unknown_;
      without_place_ += found == ArrivalBoard::State::kNoPlace;
      unlisted_ += found == ArrivalBoard::State::kUnlisted;
    }
  }
  if (entry.state != State::kKnown || end_ns == 0) {
    return entry.state == State::kUnknown || over;
  }
  // Because of errors between the hosts' clocks, the last issue may seem to
  // come after the end.
  const uint64_t duration_ns =
      std::max(end_ns, entry.issue_ns) - entry.issue_ns;
  const uint64_t wait_ns =
      std::min(duration_ns, entry.last_ns - entry.issue_ns);
  splits_.push_back({entry.operation, wait_ns, duration_ns - wait_ns});
  late_.wasLast(entry.last_rank, wait_ns);
  return true;
}

bool WaitLedger::settle(const StepWaits& step, uint64_t now_ns) {
  struct For {
    uint64_t at_ns;
    uint32_t rank;
    uint64_t wait_ns;
  };
  std::vector<For> found;
  uint64_t all_ns = 0;
  for (const Exposure& exposure : step.exposures) {
    uint64_t wait_ns = 0;
    uint32_t rank = 0;
    const State state = splitExposure(exposure, &wait_ns, &rank);
    if (state == State::kOpen && !isOver(step.end_ns, now_ns)) {
      return false;
    }
    if (state != State::kKnown) {
      countUnsplit(step);
      return true;
    }
    found.push_back({exposure.begin_ns, rank, wait_ns});
    all_ns += wait_ns;
  }
  for (const For& one : found) {
    const uint64_t common_ns = one.at_ns + uint64_t(clock_offset_ns_);
    late_.exposed(common_ns, one.rank, one.wait_ns);
  }
  exposed_wait_.add(std::min(all_ns, step.exposed_ns));
  exposed_transfer_.add(step.exposed_ns - std::min(all_ns, step.exposed_ns));
  return true;
}

WaitLedger::State WaitLedger::splitExposure(
    const Exposure& exposure,
    uint64_t* wait_ns,
    uint32_t* rank) {
  if (exposure.waited_ns == 0) {
    return State::kKnown;
  }
  if (exposure.op_id == 0) {
    return splitFinalisation(exposure, wait_ns, rank);
  }
  const Entry* entry = find(exposure.op_id);
  if (entry == nullptr || entry->state != State::kKnown) {
    return entry == nullptr ? State::kUnknown : entry->state;
  }
  *wait_ns = waitedBefore(exposure, entry->last_ns);
  *rank = entry->last_rank;
  return State::kKnown;
}

WaitLedger::State WaitLedger::splitFinalisation(
    const Exposure& exposure,
    uint64_t* wait_ns,
    uint32_t* rank) {
  const Task& task = tasks_[exposure.graph_task % kMaxTasks];
  if (task.number != exposure.graph_task || task.op_ids.empty() ||
      task.op_ids.size() > kMaxBuckets) {
    return State::kUnknown;
  }
  std::vector<BucketTimes> buckets;
  for (const uint64_t op_id : task.op_ids) {
    const Entry* entry = find(op_id);
    if (entry == nullptr || entry->state == State::kUnknown) {
      return State::kUnknown;
    }
    if (entry->state == State::kOpen || entry->end_ns == 0) {
      return State::kOpen;
    }
    buckets.push_back(
        {double(entry->size_bytes),
         entry->end_ns,
         entry->last_ns,
         entry->last_rank});
  }
  const BucketTimes& deciding = decidingBucket(buckets);
  *wait_ns = waitedBefore(exposure, buckets, deciding.last_arrival_ns);
  *rank = deciding.last_rank;
  return State::kKnown;
}

void WaitLedger::appendJson(std::string& out) const {
  out += "\"arrivals\":{\"known\":" + std::to_string(known_);
  out += ",\"unknown\":" + std::to_string(unknown_);
  out += ",\"without_place\":" + std::to_string(without_place_);
  out += ",\"unlisted\":" + std::to_string(unlisted_);
  out += ",\"partial\":" + std::to_string(partial_);
  out += ",\"unsplit_steps\":" + std::to_string(unsplit_steps_);
  out += ",\"unsplit_ns\":" + std::to_string(unsplit_ns_);
  out += "},\"arrival_clock_error\":";
  clock_error_.appendJson(out);
  out += ",\"hosts\":{\"clock\":" + std::to_string(links_.clock_known);
  out += ",\"peers\":" + std::to_string(links_.peers);
  out += ",\"heard\":" + std::to_string(links_.heard);
  out += ",\"unsent\":" + std::to_string(links_.unsent);
  out += ",\"skipped\":" + std::to_string(links_.skipped);
  out += "},\"exposed_wait\":";
  exposed_wait_.appendJson(out);
  out += ",\"exposed_transfer\":";
  exposed_transfer_.appendJson(out);
  out += ",";
  late_.appendJson(out);
}

} // namespace commprof
