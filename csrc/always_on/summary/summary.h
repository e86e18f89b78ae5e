// What always-on mode keeps in the place of records: per kind of operation and
// for the steps, counts and histograms. Its size has a bound however long the
// run: kMaxOperations and one more per operation in memory, and json() never
// exceeds its limit.
#pragma once

#include <algorithm>
#include <cstdint>
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
  // Combinations of operation, group and size; what comes later counts in the
  // one that stands for all others of its operation, so that an operation's
  // sums only grow.
  static constexpr size_t kMaxOperations = 256;
  // Operations between issue and end. One that has not ended when so many
  // others were issued after it counts as unfinished.
  static constexpr size_t kMaxOpen = 8192;

  // `exchange` tells who came last to a collective, and outlives this.
  Summary(uint64_t begin_ns, ArrivalExchange& exchange);
  Summary(const Summary&) = delete;
  Summary& operator=(const Summary&) = delete;

  // Records as drained: in order per thread, not over threads.
  void fold(const Record* records, uint64_t count);
  // Asks who came last, after each drain.
  void resolve(uint64_t now_ns);
  // Whether the others' arrivals may still tell more.
  bool pending() const noexcept {
    return ledger_.pending();
  }
  // The process ends: what is still open counts now.
  void settle();

  struct State {
    uint64_t sequence; // counts the summaries written
    uint64_t now_ns;
    Mode mode;
    uint64_t dropped; // records lost so far
  };
  // At most `limit` bytes, at least 350'000 for which there is always room: the
  // rarest combinations are moved to the others of their operation for good
  // until it fits, and if that is not enough, the rarest operations to kOther.
  const std::string& json(const State& state, size_t limit);

 private:
  struct Operation {
    Op op;
    uint32_t group;
    uint32_t size_class; // bits of the larger of bytes_in and bytes_out
    bool others = false; // stands for all others of `op`; no group, no size
    bool moved = false; // to the others of `op`, or these to those of kOther
    uint64_t count = 0;
    uint64_t bytes = 0;
    uint64_t failed = 0;
    uint64_t unfinished = 0;
    Histogram duration{};
    Histogram wait{};
    Histogram until_last{};
    Histogram wire{};
  };
  // One operation, or what was drained of it before its issue.
  struct Open {
    uint64_t op_id = 0; // 0: nobody
    uint64_t issue_ns = 0;
    uint64_t ready_ns = 0; // when its device's stream came to it
    uint64_t end_ns = 0;
    uint64_t wait_begin_ns = 0;
    uint64_t wait_end_ns = 0; // of the last wait
    uint32_t operation = 0;
    bool issued = false;
    bool on_device = false;
    bool failed = false;
    bool has_end = true; // the host sees its completion
    bool counted = false; // its duration
  };

  Open* open(uint64_t op_id);
  void close(Open& open);
  void takeIssue(const Record& record);
  void takeEnd(const Record& record);
  void takeReady(const Record& record);
  void countOnDevice(Open& open);
  void takeSteps();
  void takeWait(const Record& record);
  void countDuration(Open& open, uint64_t end_ns);
  uint32_t operationOf(const Record& record);
  uint32_t othersOf(Op op);
  Operation& operation(uint32_t index);
  size_t rarest(bool joins) const;
  bool moveRarest();
  void write(const State& state);

  const uint64_t begin_ns_;
  uint64_t records_ = 0;
  uint64_t unmatched_ = 0; // ends and waits whose issue was not seen
  uint64_t moved_ = 0; // issues that count in the others
  WaitLedger ledger_;
  DeviceSteps device_steps_;
  std::optional<FoundSteps> steps_;
  std::vector<Record> retold_; // of one record
  std::vector<Operation> operations_; // [0] stands for the others of kOther
  std::unordered_map<uint64_t, uint32_t> index_; // of those that are no others
  std::unordered_map<Op, uint32_t> others_; // where they are in operations_
  std::vector<Open> open_;
  std::string json_;
};

// How often the summary is written to the trace: a process that is killed loses
// what came after the last one.
// With the drain that is 0.2 s away at the most: within a second.
constexpr uint64_t kSummaryEveryNs = 800'000'000;
constexpr uint64_t kSummaryAtMostNs = 5'000'000'000;
constexpr uint64_t kTimesWhatItTook = 1000;

// How long until the next summary may be written, after one that took this much
// CPU time: a core spends at most 0.1 % on them, unless a killed process would
// lose more than five seconds for it.
constexpr uint64_t untilNextSummaryNs(uint64_t took_cpu_ns) noexcept {
  const uint64_t took_ns = std::min(took_cpu_ns, kSummaryAtMostNs);
  return std::clamp(
      took_ns * kTimesWhatItTook, kSummaryEveryNs, kSummaryAtMostNs);
}

} // namespace commprof
