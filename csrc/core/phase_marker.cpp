#include "core/phase_marker.h"

#include "core/clock.h"
#include "core/recorder.h"

namespace commprof {

namespace {

// The outermost open marker of a thread.
struct Open {
  const PhaseMarker* marker; // compared and never followed: it may be gone
  uint32_t depth; // of the marker inside itself
  uint64_t begin_ns;
};
constinit thread_local Open t_open{};

} // namespace

void markStep(uint64_t step, bool ended) noexcept {
  t_open = {};
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

PhaseMarker::~PhaseMarker() {
  if (t_open.marker == this) {
    t_open = {};
  }
}

void PhaseMarker::begin() noexcept {
  if (t_open.marker == nullptr) {
    t_open = {this, 0, nowNs()};
  }
  if (t_open.marker == this) {
    ++t_open.depth;
  }
}

void PhaseMarker::end() noexcept {
  if (t_open.marker != this || --t_open.depth > 0) {
    return;
  }
  const uint64_t begin_ns = t_open.begin_ns;
  t_open = {};
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    return;
  }
  Record record;
  record.kind = Kind::kPhase;
  record.aux = phase_;
  record.thread = Recorder::threadId();
  record.timestamp_ns = begin_ns;
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
