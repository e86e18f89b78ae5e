#include "always_on/device_steps.h"

#include <algorithm>
#include <cmath>

#include "always_on/wait_ledger.h"

namespace commprof {

double copyingNs(double window_ns, const std::vector<BucketEnd>& buckets) {
  double left = 0;
  for (const BucketEnd& bucket : buckets) {
    left += bucket.size_bytes;
  }
  if (left == 0) {
    return 0;
  }
  const double whole = left;
  double per_byte = window_ns / left;
  for (const BucketEnd& bucket : buckets) {
    if (left > 0) {
      per_byte =
          std::min(per_byte, std::max(0.0, (window_ns - bucket.end_ns) / left));
    }
    left -= bucket.size_bytes;
  }
  return whole * per_byte;
}

void DeviceSteps::take(const Record& record, std::vector<Record>& out) {
  Record made = record;
  made.thread = thread_;
  switch (record.kind) {
    case Kind::kDeviceReady:
      has_device_times_ = true;
      made.kind = Kind::kIssue;
      made.value = ledger_.taskOf(record.op_id);
      break;
    case Kind::kDeviceWait:
      has_device_times_ = true;
      if (!isComputing(record, false)) {
        return;
      }
      made.kind = Kind::kWait;
      break;
    case Kind::kDevicePhase:
      // A script may read its batches on a separate stream, so a data phase
      // does not show which stream computes.
      isComputing(record, record.aux != uint32_t(Phase::kData));
      made.kind = Kind::kPhase;
      break;
    case Kind::kDeviceStep:
      thread_ = made.thread = record.thread;
      made.kind = Kind::kStep;
      break;
    case Kind::kDeviceFinalize:
      if (!isComputing(record, false)) {
        return;
      }
      break;
    case Kind::kIssue:
      if ((record.flags & kDeviceAsync) == 0) {
        out.push_back(record);
      }
      return;
    case Kind::kStep:
      thread_ = record.thread;
      [[fallthrough]];
    case Kind::kPhase:
    case Kind::kWait:
    case Kind::kFinalizeBegin:
    case Kind::kFinalizeEnd:
      if (!has_device_times_) {
        out.push_back(record);
      }
      return;
    default:
      out.push_back(record);
      return;
  }
  held_.push_back(made);
  if (has_device_times_) {
    release(out, false);
  } else if (held_.size() > kMaxHeld) {
    held_.pop_front();
  }
}

bool DeviceSteps::isComputing(const Record& stretch, bool is_phase) {
  if (!stream_known_ || (is_phase && !has_phases_)) {
    stream_known_ = true;
    has_phases_ = is_phase;
    device_ = stretch.seq;
    stream_ = stretch.bytes_out;
  }
  return stretch.seq == device_ && stretch.bytes_out == stream_;
}

void DeviceSteps::finish(std::vector<Record>& out) {
  if (has_device_times_) {
    release(out, true);
  }
}

void DeviceSteps::release(std::vector<Record>& out, bool all) {
  std::vector<BucketEnd> buckets;
  while (!held_.empty()) {
    const Record& first = held_.front();
    if (first.kind != Kind::kDeviceFinalize) {
      out.push_back(first);
    } else {
      const bool complete =
          ledger_.bucketEnds(first.op_id, first.timestamp_ns, buckets);
      if (!complete && !all && held_.size() < kMaxHeld) {
        return;
      }
      const auto window_ns = double(first.value - first.timestamp_ns);
      addFinalisation(first, copyingNs(window_ns, buckets), out);
    }
    held_.pop_front();
  }
}

void DeviceSteps::addFinalisation(
    const Record& on_device,
    double copying_ns,
    std::vector<Record>& out) const {
  Record begin;
  begin.kind = Kind::kFinalizeBegin;
  begin.op_id = on_device.op_id;
  begin.thread = thread_;
  begin.timestamp_ns = on_device.timestamp_ns;
  out.push_back(begin);
  begin.kind = Kind::kFinalizeEnd;
  begin.timestamp_ns = on_device.value;
  begin.value = uint64_t(std::llround(copying_ns));
  out.push_back(begin);
}

} // namespace commprof
