#include "core/phase_marker.h"

#include "core/clock.h"
#include "core/recorder.h"

namespace commprof {

namespace {

thread_local PhaseMarker* t_outermost = nullptr;

} // namespace

void markStep(uint64_t step, bool ended) noexcept {
  if (t_outermost != nullptr) {
    t_outermost->depth_ = 0;
    t_outermost = nullptr;
  }
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    return;
  }
  Record record;
  record.kind = Kind::kStep;
  record.op_id = step;
  record.aux = ended ? 1 : 0;
  record.thread = Recorder::threadId();
  record.timestamp_ns = nowNs();
  recorder.push(record);
}

void PhaseMarker::begin() noexcept {
  if (t_outermost == nullptr) {
    t_outermost = this;
    begin_ns_ = nowNs();
  }
  if (t_outermost == this) {
    ++depth_;
  }
}

void PhaseMarker::end() noexcept {
  if (t_outermost != this || --depth_ > 0) {
    return;
  }
  t_outermost = nullptr;
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    return;
  }
  Record record;
  record.kind = Kind::kPhase;
  record.aux = phase_;
  record.thread = Recorder::threadId();
  record.timestamp_ns = begin_ns_;
  record.value = nowNs();
  recorder.push(record);
}

double recordCostNs(uint64_t count) {
  static Ring& ring = *new Ring("", 1 << 10, 1); // reused by every call
  const uint64_t begin = nowNs();
  for (uint64_t i = 0; i < count; ++i) {
    Record record;
    record.kind = Kind::kEnd;
    record.thread = Recorder::threadId();
    record.timestamp_ns = nowNs();
    ring.push(record);
    ring.commit(ring.peek([](const Record*, uint64_t) {}));
  }
  return double(nowNs() - begin) / double(count ? count : 1);
}

} // namespace commprof
