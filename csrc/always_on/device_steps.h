// Replaces the steps, phases and waits of a rank whose collectives run on a
// device by those of the device's stream, as host records in its order. The
// figures equal those of commprof/analysis/align/device_timeline.py.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/record.h"

namespace commprof {

class WaitLedger;

// Completion of a bucket, relative to the begin of the finalisation's window.
struct BucketEnd {
  double end_ns;
  double size_bytes;
};
// Returns the time of a finalisation in which the stream copied buckets and did
// not wait. `buckets` are in order of issue.
double copyingNs(double window_ns, const std::vector<BucketEnd>& buckets);

// Not thread-safe; may throw std::bad_alloc.
class DeviceSteps {
 public:
  // `ledger` knows when the buckets of a backward pass were complete.
  explicit DeviceSteps(const WaitLedger& ledger) : ledger_(ledger) {}

  // Appends the replacement of `record` to `out`. Until hasDeviceTimes(), the
  // host's steps, phases and waits pass unchanged. Once it is true, those that
  // the device has reported by then follow.
  void take(const Record& record, std::vector<Record>& out);
  // Appends what was held back for a bucket's completion that never came.
  void finish(std::vector<Record>& out);
  // True once the device reports times: the host's waits then delay nothing.
  bool hasDeviceTimes() const noexcept {
    return has_device_times_;
  }

 private:
  static constexpr size_t kMaxHeld = 1 << 12;

  bool isComputing(const Record& stretch, bool is_phase);
  void release(std::vector<Record>& out, bool all);
  void addFinalisation(
      const Record& on_device,
      double copying_ns,
      std::vector<Record>& out) const;

  const WaitLedger& ledger_;
  bool has_device_times_ = false;
  uint32_t thread_ = 0; // the thread whose steps these are
  // Stream of the first phase other than data; until there is one, the stream
  // of the first wait or phase.
  bool stream_known_ = false;
  bool has_phases_ = false;
  uint32_t device_ = 0;
  uint64_t stream_ = 0;
  // Records from the first incomplete finalisation on; without device times,
  // all.
  std::deque<Record> held_;
};

} // namespace commprof
