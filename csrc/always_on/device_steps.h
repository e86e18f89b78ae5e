// Steps, phases and waits of a rank whose collectives run on a device, retold
// as the device's stream saw them: as records of the host, in the stream's
// order. The figures are those of commprof/analysis/align/device_timeline.py.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/record.h"

namespace commprof {

class WaitLedger;

// Of a finalisation, the time in which the stream copied buckets and did not
// wait. `buckets` in order: completion since the begin of the window, bytes.
struct BucketEnd {
  double end_ns;
  double size_bytes;
};
double copyingNs(double window_ns, const std::vector<BucketEnd>& buckets);

// Not thread-safe; may throw std::bad_alloc.
class DeviceSteps {
 public:
  // `ledger` knows when the buckets of a backward pass were complete.
  explicit DeviceSteps(const WaitLedger& ledger) : ledger_(ledger) {}

  // Adds to `out` what stands for the record: itself, until the device tells.
  void take(const Record& record, std::vector<Record>& out);
  // Adds what waited for a bucket's completion that never came.
  void finish(std::vector<Record>& out);
  // Whether the device tells: then the host's waits hold up nobody.
  bool tells() const noexcept {
    return tells_;
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
  bool tells_ = false;
  uint32_t thread_ = 0; // whose steps these are
  // The stream that phases lie on; before any, that of the first wait.
  bool stream_known_ = false;
  bool has_phases_ = false;
  uint32_t device_ = 0;
  uint64_t stream_ = 0;
  std::deque<Record> held_; // behind a finalisation that is not known yet
};

} // namespace commprof
