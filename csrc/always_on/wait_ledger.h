// Finds for how long this rank waited for the last rank in its operations and
// steps. Keeps operations and steps for some seconds, until the other ranks'
// arrivals are known.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "always_on/arrivals/arrival_exchange.h"
#include "always_on/arrivals/late_ranks.h"
#include "always_on/device_steps.h"
#include "always_on/summary/histogram.h"
#include "core/record.h"

namespace commprof {

// One complete step, and the stretches in which its thread waited.
struct StepWaits {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t exposed_ns = 0;
  std::vector<Exposure> exposures;
};

// Not thread-safe; every function may throw std::bad_alloc. Point-to-point
// messages without a number (kNoSeq), and receives from any source, are
// ignored.
class WaitLedger {
 public:
  // Number of operations that are kept. Later operations take the places of
  // earlier ones.
  static constexpr size_t kMaxOpen = 1 << 14;
  static constexpr size_t kMaxTasks = 1 << 10;
  static constexpr size_t kMaxBuckets = 1 << 12;
  static constexpr size_t kMaxSteps = 1 << 12;
  // This long after this rank's issue of an operation, or after the end of a
  // step, no further arrival is expected.
  static constexpr uint64_t kPatienceNs = 5'000'000'000;

  explicit WaitLedger(ArrivalExchange& exchange);

  // Takes this rank's arrival. `operation` comes back in the operation's Split.
  // On a device, a rank arrives when its stream reaches the operation
  // (takeReady()).
  void takeIssue(const Record& record, uint32_t operation);
  void takeReady(const Record& record);
  void takeEnd(const Record& record);
  // Takes the end of a wait. For gloo's messages and reduce-scatters, no other
  // record shows when the operation ended.
  void takeWait(const Record& record);
  void takeStep(StepWaits&& step);
  // Discards the steps taken so far, and all that was counted for them.
  void forgetSteps();

  // An operation's duration, split at the last rank's issue into the wait
  // before and the transfer after.
  struct Split {
    uint32_t operation;
    uint64_t wait_ns;
    uint64_t transfer_ns;
  };
  // Returns the splits that became known since the last call. Call it after
  // each drain, and with UINT64_MAX the last time.
  const std::vector<Split>& resolve(uint64_t now_ns);
  // Returns 1 plus the id of the graph task in which the operation was issued;
  // 0 if the task is not known.
  uint64_t taskOf(uint64_t op_id) const noexcept;
  // Finds when the collectives of a backward pass were complete, relative to
  // `begin_ns`. Returns false while a completion is missing.
  bool bucketEnds(
      uint64_t graph_task,
      uint64_t begin_ns,
      std::vector<BucketEnd>& found) const;
  // True if another resolve() may find more.
  bool pending() const noexcept {
    return !queue_.empty() || !steps_.empty();
  }

  // Appends "arrivals", "arrival_clock_error", "hosts", "exposed_wait",
  // "exposed_transfer", and what LateRanks keeps, as members of a JSON object.
  void appendJson(std::string& out) const;

 private:
  enum class State : uint8_t { kOpen, kKnown, kUnknown };
  struct Entry {
    uint64_t op_id = 0; // 0: unused
    uint64_t issue_ns = 0; // this rank's arrival; 0 until known
    uint64_t ready_ns = 0; // when the device's stream reached the operation
    uint64_t task = 0; // id of the graph task + 1
    uint64_t end_ns = 0; // 0 until the record of the end was drained
    uint64_t waited_until_ns = 0; // end of the first wait; 0: none yet
    uint64_t last_ns = 0; // issue by the last rank
    uint64_t size_bytes = 0;
    IssuedOp issued_as;
    uint32_t operation = 0;
    uint32_t last_rank = 0;
    bool on_device = false;
    // The record of the issue was drained. The device may not have reached the
    // operation yet.
    bool issued = false;
    State state = State::kOpen;
  };
  struct Task {
    uint64_t number = 0;
    std::vector<uint64_t> op_ids; // in order of issue
  };

  Entry* place(uint64_t op_id) noexcept;
  static uint64_t endOf(const Entry& entry, bool over) noexcept;
  void arrive(Entry& entry, uint64_t at_ns);
  const Entry* find(uint64_t op_id) const noexcept;
  void followClock();
  bool settle(Entry& entry, uint64_t now_ns);
  bool settle(const StepWaits& step, uint64_t now_ns);
  void countUnsplit(const StepWaits& step) noexcept;
  State splitExposure(
      const Exposure& exposure,
      uint64_t* wait_ns,
      uint32_t* rank);
  State splitFinalisation(
      const Exposure& exposure,
      uint64_t* wait_ns,
      uint32_t* rank);

  ArrivalExchange& exchange_;
  std::vector<Entry> entries_; // index: op_id modulo kMaxOpen
  std::vector<Task> tasks_; // index: number modulo kMaxTasks
  std::deque<uint64_t> queue_; // operations not settled yet
  std::deque<StepWaits> steps_;
  // Number of steps at the front of steps_ that came before the latest drain.
  // The ends of their collectives were drained too.
  size_t drained_steps_ = 0;
  std::vector<Split> splits_;
  HostLinks links_; // as of the last resolve()
  // Rank 0's clock minus this host's, for the times in late_; 0 until known.
  int64_t clock_offset_ns_ = 0;

  uint64_t known_ = 0;
  uint64_t unknown_ = 0;
  // Part of unknown_: operations for whose group the board had no place.
  uint64_t without_place_ = 0;
  // Part of unknown_: operations that were kUnlisted.
  uint64_t unlisted_ = 0;
  uint64_t partial_ = 0; // part of known_: operations that were kPartial
  uint64_t unsplit_steps_ = 0;
  uint64_t unsplit_ns_ = 0; // exposed time of these steps
  // Bounds on the clock error, for collectives across hosts.
  Histogram clock_error_;
  Histogram exposed_wait_;
  Histogram exposed_transfer_;
  LateRanks late_;
};

} // namespace commprof
