#include "always_on/summary/summary.h"

#include <algorithm>
#include <array>
#include <bit>

namespace commprof {

Summary::Summary(uint64_t begin_ns, ArrivalExchange& exchange)
    : begin_ns_(begin_ns),
      ledger_(exchange),
      device_steps_(ledger_),
      steps_(std::in_place, ledger_),
      open_(kMaxOpen) {
  othersOf(Op::kOther);
}

void Summary::fold(const Record* records, uint64_t count) {
  for (const Record* record = records; record != records + count; ++record) {
    switch (record->kind) {
      case Kind::kIssue:
        takeIssue(*record);
        break;
      case Kind::kEnd:
        takeEnd(*record);
        break;
      case Kind::kDeviceReady:
        takeReady(*record);
        break;
      case Kind::kWait:
        if ((record->flags & kInIssue) == 0) {
          ledger_.takeWait(*record);
        }
        takeWait(*record);
        break;
      case Kind::kDeviceWait:
        takeWait(*record);
        break;
      default:
        break;
    }
    const bool had_device_times = device_steps_.hasDeviceTimes();
    device_steps_.take(*record, replacements_);
    if (device_steps_.hasDeviceTimes() && !had_device_times) {
      // From here on, device_steps_ reports all steps, including the earlier
      // ones.
      ledger_.forgetSteps();
      steps_.emplace(ledger_);
    }
    takeSteps();
  }
  records_ += count;
}

void Summary::takeSteps() {
  for (const Record& record : replacements_) {
    steps_->take(record);
  }
  replacements_.clear();
}

// A place is reused after kMaxOpen operations. Returns null if a later
// operation, with a higher id, has the place.
Summary::Open* Summary::open(uint64_t op_id) {
  Open& place = open_[op_id % kMaxOpen];
  if (place.op_id > op_id) {
    ++unmatched_;
    return nullptr;
  }
  if (place.op_id < op_id) {
    close(place);
    place.op_id = op_id;
  }
  return &place;
}

void Summary::close(Open& open) {
  if (!open.issued) {
    unmatched_ += open.op_id != 0;
  } else if (open.has_end && !open.counted) {
    // Some of gloo's operations report completion only to the waiting thread.
    if (open.wait_end_ns != 0) {
      countWait(open);
    } else {
      ++operation(open.operation).unfinished;
    }
  }
  open = {};
}

void Summary::resolve(uint64_t now_ns) {
  for (const WaitLedger::Split& split : ledger_.resolve(now_ns)) {
    Operation& kind = operation(split.operation);
    kind.until_last.add(split.wait_ns);
    kind.transfer.add(split.transfer_ns);
  }
  countWaited(now_ns);
}

// Counts operations whose wait ended so long ago that no other report of their
// end is expected.
void Summary::countWaited(uint64_t now_ns) {
  for (; !waited_.empty(); waited_.pop_front()) {
    Open& open = open_[waited_.front() % kMaxOpen];
    const bool lacks_end = open.op_id == waited_.front() && !open.counted;
    if (lacks_end && now_ns < open.wait_end_ns + WaitLedger::kPatienceNs) {
      return;
    }
    if (lacks_end && open.issued) {
      countWait(open);
    }
  }
}

// Counts an operation whose end is known only from its first wait. If the wait
// did not block, the completion time is unknown.
void Summary::countWait(Open& open) {
  if (open.wait_end_ns - open.wait_begin_ns >= kBlockedNs) {
    countDuration(open, open.wait_end_ns);
  }
  open.counted = open.has_end;
}

void Summary::settle() {
  device_steps_.finish(replacements_);
  takeSteps();
  resolve(UINT64_MAX);
  for (Open& open : open_) {
    close(open);
  }
}

void Summary::takeIssue(const Record& record) {
  const uint32_t index = operationOf(record);
  Operation& kind = operation(index);
  ++kind.count;
  kind.bytes += std::max(record.bytes_in, record.bytes_out);
  moved_ += kind.others;
  ledger_.takeIssue(record, index);
  Open* open = this->open(record.op_id);
  if (open == nullptr) {
    return;
  }
  open->issued = true;
  open->operation = index;
  open->issue_ns = record.timestamp_ns;
  open->on_device = (record.flags & kDeviceAsync) != 0;
  open->has_end = !open->on_device;
  kind.failed += open->failed;
  if (open->wait_of_host && timedByDevice(*open)) {
    open->wait_begin_ns = open->wait_end_ns = 0;
  }
  if (open->wait_end_ns != 0) {
    kind.wait.add(open->wait_end_ns - open->wait_begin_ns);
  }
  if (open->on_device) {
    countOnDevice(*open);
  } else if (open->end_ns != 0) {
    countDuration(*open, open->end_ns);
  }
}

void Summary::takeReady(const Record& record) {
  ledger_.takeReady(record);
  Open* open = this->open(record.op_id);
  if (open != nullptr) {
    open->ready_ns = record.timestamp_ns;
    countOnDevice(*open);
  }
}

void Summary::countOnDevice(Open& open) {
  if (open.issued && open.ready_ns != 0 && open.end_ns != 0) {
    open.has_end = true;
    open.issue_ns = open.ready_ns;
    countDuration(open, open.end_ns);
  }
}

void Summary::takeEnd(const Record& record) {
  ledger_.takeEnd(record);
  Open* open = this->open(record.op_id);
  if (open == nullptr) {
    return;
  }
  const bool failed = (record.flags & kFailed) != 0;
  if (!open->issued) {
    open->end_ns = record.timestamp_ns;
    open->failed = failed;
    return;
  }
  operation(open->operation).failed += failed;
  if (open->on_device && (record.flags & kDeviceTime) != 0) {
    open->end_ns = record.timestamp_ns;
    countOnDevice(*open);
  } else {
    // Also for an operation on a device, because the host has seen its end.
    open->has_end = true;
    countDuration(*open, record.timestamp_ns);
  }
}

void Summary::takeWait(const Record& record) {
  Open* open = this->open(record.op_id);
  if (open == nullptr) {
    return;
  }
  const bool of_host = record.kind == Kind::kWait;
  if (of_host && timedByDevice(*open)) {
    return;
  }
  const uint64_t end_ns = std::max(record.value, record.timestamp_ns);
  // A wait inside the issuing call does not show when the operation ended.
  if ((record.flags & kInIssue) != 0) {
    if (open->issued) {
      operation(open->operation).wait.add(end_ns - record.timestamp_ns);
    }
    return;
  }
  if (open->wait_end_ns == 0 || (open->wait_of_host && !of_host)) {
    open->wait_begin_ns = record.timestamp_ns;
    open->wait_end_ns = end_ns;
    open->wait_of_host = of_host;
  }
  if (open->issued) {
    operation(open->operation).wait.add(end_ns - record.timestamp_ns);
    if (isPointToPoint(record.op)) {
      countWait(*open);
    }
  }
  if (open->has_end && !open->counted) {
    if (waited_.size() == kMaxOpen) {
      // close() counts the dropped operation later.
      waited_.pop_front();
    }
    waited_.push_back(record.op_id);
  }
}

// True if the device reports for how long streams waited for the operation. The
// host's waits for the operation then do not count.
bool Summary::timedByDevice(const Open& open) const {
  return open.issued && open.on_device && device_steps_.hasDeviceTimes();
}

void Summary::countDuration(Open& open, uint64_t end_ns) {
  if (open.has_end && !open.counted) {
    open.counted = true;
    operation(open.operation)
        .duration.add(end_ns > open.issue_ns ? end_ns - open.issue_ns : 0);
  }
}

uint32_t Summary::operationOf(const Record& record) {
  const auto size_class =
      uint32_t(std::bit_width(std::max(record.bytes_in, record.bytes_out)));
  const uint64_t key = uint64_t(record.op) << 40 | uint64_t(record.group) << 8 |
      uint64_t(size_class);
  const auto known = index_.find(key);
  if (known != index_.end()) {
    return known->second;
  }
  if (index_.size() + 1 == kMaxOperations) {
    return othersOf(record.op);
  }
  operations_.push_back({record.op, record.group, size_class});
  const auto index = uint32_t(operations_.size() - 1);
  index_.emplace(key, index);
  return index;
}

uint32_t Summary::othersOf(Op op) {
  const auto known = others_.find(op);
  if (known != others_.end()) {
    return known->second;
  }
  operations_.push_back({op, 0, 0, true});
  const auto index = uint32_t(operations_.size() - 1);
  others_.emplace(op, index);
  return index;
}

Summary::Operation& Summary::operation(uint32_t index) {
  Operation& found = operations_[index];
  if (!found.moved) {
    return found;
  }
  return found.others ? operations_[0] : operation(others_.at(found.op));
}

// Returns the index of the rarest entry that was not moved yet; 0 if there is
// none. With `joins`, considers only entries whose Op has several entries.
size_t Summary::rarest(bool joins) const {
  std::array<uint32_t, 256> count_of_op{};
  for (const Operation& one : operations_) {
    count_of_op[size_t(one.op)] += one.moved ? 0 : 1;
  }
  size_t found = 0;
  for (size_t i = 1; i < operations_.size(); ++i) {
    const Operation& one = operations_[i];
    const bool can = !joins || (!one.others && count_of_op[size_t(one.op)] > 1);
    if (can && !one.moved &&
        (found == 0 || one.count < operations_[found].count)) {
      found = i;
    }
  }
  return found;
}

bool Summary::moveRarest() {
  size_t from = rarest(true);
  if (from == 0) {
    // Every Op has only one entry left. The rarest Op is merged into the entry
    // of kOther. If this Op occurs again, its sums may be in several entries.
    from = rarest(false);
  }
  if (from == 0) {
    return false;
  }
  const bool whole = operations_[from].others;
  const uint32_t to = whole ? 0 : othersOf(operations_[from].op);
  Operation& others = operation(to);
  Operation& rarest = operations_[from];
  others.duration.merge(rarest.duration);
  others.wait.merge(rarest.wait);
  others.until_last.merge(rarest.until_last);
  others.transfer.merge(rarest.transfer);
  others.count += rarest.count;
  others.bytes += rarest.bytes;
  others.failed += rarest.failed;
  others.unfinished += rarest.unfinished;
  moved_ += whole ? 0 : rarest.count;
  rarest = {rarest.op, rarest.group, rarest.size_class, whole, true};
  return true;
}

const std::string& Summary::json(const State& state, size_t limit) {
  write(state);
  while (json_.size() > limit) {
    const auto live = size_t(
        std::count_if(
            operations_.begin(), operations_.end(), [](const Operation& one) {
              return one.count > 0;
            }));
    // Moves half of the estimated number of excess entries, and measures again.
    // So too many entries are seldom moved.
    const size_t excess = json_.size() - limit;
    size_t moves = 1 + excess * live / json_.size() / 2;
    bool moved = false;
    for (; moves > 0 && moveRarest(); --moves) {
      moved = true;
    }
    if (!moved) {
      break;
    }
    write(state);
  }
  return json_;
}

void Summary::write(const State& state) {
  const auto field = [this](const char* name, uint64_t value) {
    json_.append(name).append(std::to_string(value));
  };
  json_.clear();
  field("{\"sequence\":", state.sequence);
  json_.append(",\"mode\":\"").append(modeName(state.mode)).append("\"");
  field(",\"begin_ns\":", begin_ns_);
  field(",\"end_ns\":", state.now_ns);
  field(",\"records\":", records_);
  field(",\"dropped\":", state.dropped);
  field(",\"unmatched\":", unmatched_);
  field(",\"moved\":", moved_);
  json_ += ",";
  steps_->appendJson(json_);
  json_ += ",";
  ledger_.appendJson(json_);
  json_ += ",\"operations\":[";
  bool first = true;
  for (const Operation& one : operations_) {
    if (one.count == 0) {
      continue;
    }
    field(first ? "{\"op\":" : ",{\"op\":", uint64_t(one.op));
    field(",\"group\":", one.group);
    field(",\"size_class\":", one.size_class);
    field(",\"count\":", one.count);
    field(",\"bytes\":", one.bytes);
    field(",\"failed\":", one.failed);
    field(",\"unfinished\":", one.unfinished);
    json_ += ",\"duration\":";
    one.duration.appendJson(json_);
    json_ += ",\"wait\":";
    one.wait.appendJson(json_);
    json_ += ",\"until_last\":";
    one.until_last.appendJson(json_);
    json_ += ",\"transfer\":";
    one.transfer.appendJson(json_);
    json_ += "}";
    first = false;
  }
  json_ += "]}";
}

} // namespace commprof
