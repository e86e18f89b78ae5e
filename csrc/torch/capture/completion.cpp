#include "torch/capture/completion.h"

#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/recorder.h"
#include "core/wait_returns.h"
#include "torch/capture/ddp/finalize.h"
#include "torch/capture/timed_work.h"
#include "torch/device/device_events.h"

namespace commprof {

void recordEnd(uint64_t op_id, Op op, bool failed) {
  const uint64_t now_ns = nowNs();
  Recorder& recorder = Recorder::instance();
  // Not enabled(): ends are recorded even while capture is paused.
  if (!recorder.started()) {
    return;
  }
  Record record;
  record.kind = Kind::kEnd;
  record.op = op;
  record.op_id = op_id;
  record.thread = Recorder::threadId();
  record.flags = failed ? kFailed : 0;
  record.timestamp_ns = WaitReturns::instance().completionNs(op_id, now_ns);
  recorder.push(record);
}

namespace {

struct Coalesced {
  static constexpr size_t kMost = 4096;

  bool open = false;
  DeviceTimeline* timeline = nullptr;
  std::vector<Record> issues;
  // A raw pointer, so that the finder is not destroyed at the thread's end. Its
  // destructor uses torch's profiler, which may no longer exist then.
  StreamFinder* finder = nullptr;

  void reset(bool opened) {
    delete finder;
    *this = {};
    open = opened;
  }
};

Coalesced& coalesced() {
  static thread_local Coalesced c;
  return c;
}

// Adds a device operation to the open coalesced call. Returns false if the
// operation was not added. A coalesced call of kMost operations counts as
// failed.
bool isCoalesced(const Record& issue, DeviceTimeline* timeline) {
  Coalesced& together = coalesced();
  if (!together.open || (issue.flags & kDeviceAsync) == 0) {
    return false;
  }
  if (together.finder == nullptr && timeline != nullptr) {
    together.finder = findStream(*timeline).release();
  }
  together.timeline = timeline;
  together.issues.push_back(issue);
  if (together.issues.size() == Coalesced::kMost) {
    abandonCoalescing();
  }
  return true;
}

void completed(
    const DeviceOp& on,
    uint64_t op_id,
    Op op,
    const c10::ivalue::Future& future) {
  if (future.devices().empty() || future.hasError()) {
    recordEnd(op_id, op, future.hasError());
  } else {
    markCompletion(on, op_id, op);
  }
}

// Arranges to record the Work's completion. Returns false, or throws, if the
// Work cannot be observed: NCCL's Works of coalesced calls have no future, and
// gloo's reduce-scatter throws.
bool watchCompletion(
    c10d::Work& work,
    const Record& issue,
    const DeviceOp& on) {
  const uint64_t op_id = issue.op_id;
  const Op op = issue.op;
  const bool on_device = (issue.flags & kDeviceAsync) != 0;
  if (!on_device && isPointToPoint(op)) { // gloo's messages have no future
    return false;
  }
  const auto future = work.getFuture();
  if (future == nullptr) {
    return false;
  }
  if (!on_device) {
    future->addCallback(
        [op_id, op](c10::ivalue::Future& done) {
          recordEnd(op_id, op, done.hasError());
        },
        /*uses_future=*/false);
    awaitInPass(future, op_id);
    return true;
  }
  // A future with devices is complete once the operation is launched. A future
  // without devices (gloo's) is complete once the operation is done. If the
  // latter is complete here already, the end of the operation is unknown, and
  // nothing is recorded.
  if (future->devices().empty() && future->completed()) {
    return true;
  }
  if (future->completed()) {
    completed(on, op_id, op, *future);
    return true;
  }
  future->addCallback(
      [op_id, op](c10::ivalue::Future& future) {
        // No stream: other work may have been launched since.
        completed({}, op_id, op, future);
      },
      /*uses_future=*/false);
  return true;
}

c10::intrusive_ptr<c10d::Work> timed(
    c10::intrusive_ptr<c10d::Work> work,
    const Record* issues,
    size_t count,
    const DeviceOp& on) {
  // false: the end of a wait counts as the completion.
  bool end_recorded = false;
  for (size_t i = 0; i < count; ++i) {
    try {
      end_recorded = watchCompletion(*work, issues[i], on);
    } catch (const std::exception&) {
      end_recorded = false;
    }
  }
  const Record& last = issues[count - 1];
  return c10::make_intrusive<TimedWork>(
      std::move(work),
      last.op_id,
      last.op,
      end_recorded,
      on.in_stream ? nullptr : on.timeline);
}

} // namespace

bool coalescing() noexcept {
  return coalesced().open;
}

void beginCoalescing() {
  coalesced().reset(true);
}

void abandonCoalescing() {
  coalesced().reset(false);
}

c10::intrusive_ptr<c10d::Work> endCoalescing(
    c10::intrusive_ptr<c10d::Work> work) {
  DeviceOp on{coalesced().timeline};
  if (coalesced().finder != nullptr) {
    on.stream = coalesced().finder->found();
  }
  const std::vector<Record> issues = std::move(coalesced().issues);
  coalesced().reset(false);
  if (!work || issues.empty()) {
    return work;
  }
  return timed(std::move(work), issues.data(), issues.size(), on);
}

void watch(c10::IValue& result, const Record& issue, const DeviceOp& on) {
  if (isCoalesced(issue, on.timeline)) {
    return;
  }
  auto& holder = result.toObjectRef(); // made by the kernel, not shared yet
  auto work = c10::static_intrusive_pointer_cast<c10d::Work>(
      holder.getSlot(0).toCapsule());
  if (!work) {
    return;
  }
  holder.setSlot(
      0, c10::IValue::make_capsule(timed(std::move(work), &issue, 1, on)));
}

} // namespace commprof
