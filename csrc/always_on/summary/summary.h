// Summary that always-on mode keeps instead of records: counts and histograms
// of operations and steps. Its size is bounded for any length of run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "always_on/device_steps.h"
#include "always_on/found_steps.h"
#include "always_on/summary/histogram.h"
#include "always_on/wait_ledger.h"
#include "core/modes/mode.h"
#include "core/record.h"

namespace commprof {

// Not thread-safe. fold() and json() may throw std::bad_alloc.
class Summary {
 public:
  // Largest number of combinations of Op, group and size. Further combinations
  // are counted in one entry per Op.
  static constexpr size_t kMaxOperations = 256;
  // An operation that has not ended after this many later issues counts as
  // unfinished.
  static constexpr size_t kMaxOpen = 8192;

  // `exchange` finds the last ranks of collectives; it must outlive this
  // object.
  Summary(uint64_t begin_ns, ArrivalExchange& exchange);
  Summary(const Summary&) = delete;
  Summary& operator=(const Summary&) = delete;

  // Takes records as they are drained from the rings: records of one thread are
  // in order, but records of different threads are not.
  void fold(const Record* records, uint64_t count);
  // Discards the open step, because some of its records are missing.
  void forgetOpenStep() {
    steps_->forgetOpenStep();
  }
  // Finds the last ranks of collectives; call it after each drain.
  void resolve(uint64_t now_ns);
  // True if arrivals of other ranks may still change the summary.
  bool pending() const noexcept {
    return ledger_.pending();
  }
  // Counts the operations that are still open. Call it at the end of the
  // process.
  void settle();

  struct State {
    uint64_t sequence; // number of this summary, from 1
    uint64_t now_ns;
    Mode mode;
    uint64_t dropped; // records lost so far
  };
  // Returns at most `limit` bytes, if `limit` is at least 350'000. If
  // necessary, merges the rarest entries permanently.
  const std::string& json(const State& state, size_t limit);

 private:
  struct Operation {
    Op op;
    uint32_t group;
    // Number of bits of the larger of bytes_in and bytes_out.
    uint32_t size_class;
    bool others = false; // entry for all other combinations of `op`
    bool moved = false; // its figures were moved to another entry
    uint64_t count = 0;
    uint64_t bytes = 0;
    uint64_t failed = 0;
    uint64_t unfinished = 0;
    Histogram duration{};
    Histogram wait{};
    Histogram until_last{};
    Histogram transfer{};
  };
  // One operation. Its end or its waits may be drained before its issue.
  struct Open {
    uint64_t op_id = 0; // 0: unused
    uint64_t issue_ns = 0;
    uint64_t ready_ns = 0; // when the device's stream reached the operation
    uint64_t end_ns = 0;
    uint64_t wait_begin_ns = 0; // of the first wait
    uint64_t wait_end_ns = 0;
    uint32_t operation = 0;
    bool issued = false;
    bool on_device = false;
    bool wait_of_host = false; // the first wait was the host's, not a stream's
    bool failed = false;
    bool has_end = true; // its end can be observed
    bool counted = false; // its end was seen, and its duration added if known
  };

  Open* open(uint64_t op_id);
  void close(Open& open);
  void takeIssue(const Record& record);
  void takeEnd(const Record& record);
  void takeReady(const Record& record);
  void countOnDevice(Open& open);
  void takeSteps();
  void takeWait(const Record& record);
  bool timedByDevice(const Open& open) const;
  void countDuration(Open& open, uint64_t end_ns);
  void countWait(Open& open);
  void countWaited(uint64_t now_ns);
  uint32_t operationOf(const Record& record);
  uint32_t othersOf(Op op);
  Operation& operation(uint32_t index);
  size_t rarest(bool joins) const;
  bool moveRarest();
  void write(const State& state);

  const uint64_t begin_ns_;
  uint64_t records_ = 0;
  uint64_t unmatched_ = 0; // ends and waits whose issue was not seen
  uint64_t moved_ = 0; // issues counted in entries with `others`
  WaitLedger ledger_;
  DeviceSteps device_steps_;
  std::optional<FoundSteps> steps_;
  std::vector<Record> replacements_;
  std::vector<Operation> operations_; // [0]: the entry with `others` of kOther
  std::unordered_map<uint64_t, uint32_t> index_;
  std::unordered_map<Op, uint32_t> others_;
  std::vector<Open> open_;
  // Operations whose end was unknown when a wait for them ended.
  std::deque<uint64_t> waited_;
  std::string json_;
};

// Shortest and longest interval between two summaries in the trace. A killed
// process loses the records after its last summary: at the shortest interval at
// most one second, because the next drain comes at most 0.2 s after it.
constexpr uint64_t kSummaryEveryNs = 800'000'000;
constexpr uint64_t kSummaryAtMostNs = 5'000'000'000;
constexpr uint64_t kIntervalPerCost = 1000;

// Returns the time until the next summary. It is so long that summaries take at
// most 0.1 % of a core's time, but at most kSummaryAtMostNs.
constexpr uint64_t untilNextSummaryNs(uint64_t took_cpu_ns) noexcept {
  const uint64_t took_ns = std::min(took_cpu_ns, kSummaryAtMostNs);
  return std::clamp(
      took_ns * kIntervalPerCost, kSummaryEveryNs, kSummaryAtMostNs);
}

} // namespace commprof
