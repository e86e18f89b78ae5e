// The time for which a thread was blocked until an operation was complete.
#pragma once

#include "base/clock.h"
#include "core/recorder.h"

namespace commprof {

// Put it around the call that blocks. It records also when the call throws.
class WaitTimer {
 public:
  // `is_end`: nothing else tells when the operation was complete.
  WaitTimer(uint64_t op_id, Op op, bool is_end = false) noexcept
      : op_id_(op_id), op_(op), is_end_(is_end) {}
  ~WaitTimer() {
    const uint64_t end_ns = nowNs();
    Recorder& recorder = Recorder::instance();
    if (!recorder.enabled() || (end_ns - begin_ns_ < kShortestNs && !is_end_)) {
      return;
    }
    Record record;
    record.kind = Kind::kWait;
    record.op = op_;
    record.op_id = op_id_;
    record.thread = Recorder::threadId();
    record.timestamp_ns = begin_ns_;
    record.value = end_ns;
    recorder.push(record);
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  // A wait that finds the work done blocks nobody and needs no record.
  static constexpr uint64_t kShortestNs = 1000;

  const uint64_t begin_ns_ = nowNs();
  const uint64_t op_id_;
  const Op op_;
  const bool is_end_;
};

} // namespace commprof
