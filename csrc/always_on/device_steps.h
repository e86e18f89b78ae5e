// If a rank's collectives run on a device, replaces the host's steps, phases
// and waits with those of the device's stream, in the form of host records. The
// results equal those of commprof/analysis/align/device_timeline.py.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/record.h"

namespace commprof {

class WaitLedger;

// When a bucket's collective was complete, relative to the begin of the
// finalisation. The finalisation is the stretch at the end of backward in which
// DDP waits for all buckets.
struct BucketEnd {
  double end_ns;
  double size_bytes;
};
// Returns for how long the stream copied buckets during a finalisation.
// `buckets` are in order of issue.
double copyingNs(double window_ns, const std::vector<BucketEnd>& buckets);

// Not thread-safe; may throw std::bad_alloc.
class DeviceSteps {
 public:
  explicit DeviceSteps(const WaitLedger& ledger) : ledger_(ledger) {}

  // Appends the replacement of `record` to `out`. Until the device reports
  // times, the host's steps, phases and waits pass unchanged. After that, those
  // of the device are appended instead.
  void take(const Record& record, std::vector<Record>& out);
  // Appends the records that were held back until a bucket is complete.
  void finish(std::vector<Record>& out);
  // True once the device reports times. From then on, the host's waits do not
  // count, because the device may work during such a wait.
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
  uint32_t thread_ = 0;
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
