#include "torch/capture/ddp/finalize.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <vector>

#include "base/clock.h"
#include "core/recorder.h"
#include "core/wait_returns.h"
#include "device/device_timeline.h"
#include "torch/capture/ddp/observed_buckets.h"

namespace commprof {

namespace {

// The kernel's count takes some 10 us to read while a model runs; twice every
// 100 ms that is 0.02 % of the thread's time. Shorter steps have it now and
// then.
constexpr uint64_t kRunDelayIntervalNs = 100'000'000;
constexpr size_t kMostAwaited = 1024;

thread_local int works_for = -1;

thread_local int last_graph_task = -1;

// What the finalisation of a pass may wait for. A future lives at least until
// its callbacks have run.
struct Awaited {
  c10::weak_intrusive_ptr<c10::ivalue::Future> future;
  uint64_t op_id;
  int graph_task;
};

// Of this thread's passes that are not finalised yet.
std::vector<Awaited>& awaited() {
  static thread_local std::vector<Awaited> kept;
  return kept;
}

// Those of the pass that are complete were so at `end_ns`, but for the time
// that this takes.
void noteReturns(int graph_task, uint64_t end_ns) {
  std::erase_if(awaited(), [&](const Awaited& one) {
    if (one.graph_task != graph_task) {
      return false;
    }
    const auto future = one.future.lock();
    if (future.defined() && future->completed()) {
      WaitReturns::instance().note(one.op_id, end_ns);
    }
    return true;
  });
}

// Whether this finalisation, of which both ends ask, reads the run delay.
bool readsRunDelay(Kind kind) {
  static thread_local uint64_t last_ns = 0;
  static thread_local bool reads = false;
  if (kind == Kind::kFinalizeBegin) {
    const uint64_t now_ns = nowNs();
    reads = now_ns - last_ns >= kRunDelayIntervalNs;
    if (reads) {
      last_ns = now_ns;
    }
  }
  return reads;
}

// Returns the time of the record; the latest possible if there is none.
uint64_t recordFinalize(Kind kind, int graph_task) {
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    return UINT64_MAX;
  }
  Record record;
  record.kind = kind;
  record.op_id = uint64_t(graph_task);
  record.thread = Recorder::threadId();
  // The window is [Begin, End]: its own clock reads stay outside of it.
  if (kind == Kind::kFinalizeEnd) {
    record.timestamp_ns = nowNs();
  }
  record.value = threadCpuNs();
  if (readsRunDelay(kind)) {
    record.bytes_in = threadRunDelayNs();
    record.flags = kRunDelayRead;
  }
  if (kind == Kind::kFinalizeBegin) {
    record.timestamp_ns = nowNs();
  }
  recorder.push(record);
  return record.timestamp_ns;
}

// The stretch of the device's stream that the finalisation fills.
void markFinalize(Kind kind, int graph_task) {
  static thread_local auto begin = DeviceTimeline::kNoMark;
  static thread_local int begun = -1;
  DeviceTimeline* timeline = DeviceTimeline::main();
  if (timeline == nullptr || !Recorder::instance().enabled()) {
    return;
  }
  if (kind == Kind::kFinalizeBegin) {
    timeline->forget(begin); // of one that was never ended
    begin = timeline->mark();
    begun = graph_task;
  } else if (begun == graph_task) {
    Record record;
    record.kind = Kind::kDeviceFinalize;
    record.op_id = uint64_t(graph_task);
    record.thread = Recorder::threadId();
    record.bytes_in = nowNs();
    timeline->stretch(record, begin, timeline->mark());
    begin = DeviceTimeline::kNoMark;
    begun = -1;
  }
}

} // namespace

int bracketFinalize() {
  const int graph_task = torch::autograd::get_current_graph_task_id();
  if (graph_task < 0) {
    return works_for; // not inside a backward pass
  }
  if (graph_task == last_graph_task) {
    return graph_task;
  }
  last_graph_task = graph_task;
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (awaited().size() >= kMostAwaited) { // of passes that failed
    awaited().clear();
  }
  engine.queue_callback([graph_task] {
    recordFinalize(Kind::kFinalizeBegin, graph_task);
    markFinalize(Kind::kFinalizeBegin, graph_task);
    // Last: it may move the engine's list of callbacks, this one in it.
    torch::autograd::Engine::get_default_engine().queue_callback([graph_task] {
      markFinalize(Kind::kFinalizeEnd, graph_task);
      noteReturns(graph_task, recordFinalize(Kind::kFinalizeEnd, graph_task));
      recordObservedBuckets(graph_task);
    });
  });
  return graph_task;
}

void awaitInPass(
    const c10::intrusive_ptr<c10::ivalue::Future>& future,
    uint64_t op_id) {
  const int graph_task = torch::autograd::get_current_graph_task_id();
  if (graph_task >= 0 && graph_task == last_graph_task) {
    awaited().push_back(
        {c10::weak_intrusive_ptr<c10::ivalue::Future>(future),
         op_id,
         graph_task});
  }
}

WorksFor::WorksFor(int graph_task) noexcept {
  works_for = graph_task;
}
WorksFor::~WorksFor() {
  works_for = -1;
}

} // namespace commprof
