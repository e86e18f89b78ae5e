// Replaces a rank's steps, phases and waits by those of the device's stream, if
// the rank's collectives run on a device. The replacements have the form of
// host records, in the stream's order. Figures made from them equal those of
// commprof/analysis/align/device_timeline.py.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/record.h"

namespace commprof {

class WaitLedger;

// Completion of a bucket's collective, relative to the begin of the stretch in
// which DDP waits for all buckets at the end of backward (the finalisation).
struct BucketEnd {
  double end_ns;
  double size_bytes;
};
// Returns for how long the stream copied buckets during a finalisation, instead
// of waiting. `buckets` are in order of issue.
double copyingNs(double window_ns, const std::vector<BucketEnd>& buckets);

// Not thread-safe; may throw std::bad_alloc.
class DeviceSteps {
 public:
  // `ledger` knows when the buckets of a backward pass were complete.
  explicit DeviceSteps(const WaitLedger& ledger) : ledger_(ledger) {}

  // Appends the replacement of `record` to `out`. While hasDeviceTimes() is
  // false, the host's steps, phases and waits pass unchanged. Once it is true,
  // the device's steps, phases and waits are appended as the device reports
  // them.
  void take(const Record& record, std::vector<Record>& out);
  // Appends the records that were held back for a bucket's completion that
  // never came.
  void finish(std::vector<Record>& out);
  // True once the device reports times. From then on the waits of the host do
  // not count, because a wait of the host does not always delay the device.
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
  uint32_t thread_ = 0; // thread of the newest step; replacements get it
  // Stream of the first phase other than data. Until there is such a phase:
  // stream of the first wait or phase.
  bool stream_known_ = false;
  bool has_phases_ = false;
  uint32_t device_ = 0;
  uint64_t stream_ = 0;
  // Replacements that were not appended yet. Without device times: the newest
  // kMaxHeld. Otherwise: those from the first incomplete finalisation on.
  std::deque<Record> held_;
};

} // namespace commprof
