#include "torch/capture/ddp/finalize.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <vector>

#include "base/clock.h"
#include "core/recorder.h"
#include "core/wait_returns.h"
#include "device/device_timeline.h"
#include "torch/capture/ddp/observed_buckets.h"

namespace commprof {

namespace {

// Run delay: time in which a thread waited for a core. Reading it from the
// kernel takes about 10 us, so it is not read in every finalisation.
constexpr uint64_t kRunDelayIntervalNs = 100'000'000;
constexpr size_t kMostAwaited = 1024;

thread_local int works_for = -1;

thread_local int last_graph_task = -1;
std::atomic<int> latest_graph_task{-1};

// Backward pass that the script finalises on this thread with
// DDP.finalize_backward(); -1: none.
thread_local int manual_graph_task = -1;

// A future that a backward pass's finalisation may wait for. An expired future
// counts as complete.
struct Awaited {
  c10::weak_intrusive_ptr<c10::ivalue::Future> future;
  uint64_t op_id;
  int graph_task;
};

// Futures of this thread's unfinished backward passes.
std::vector<Awaited>& awaited() {
  static thread_local std::vector<Awaited> kept;
  return kept;
}

// Notes `end_ns` as the completion time of the pass's complete futures. Keeps
// incomplete futures for a manual finalisation.
void noteReturns(int graph_task, uint64_t end_ns) {
  std::erase_if(awaited(), [&](const Awaited& one) {
    if (one.graph_task != graph_task) {
      return false;
    }
    const auto future = one.future.lock();
    if (future.defined() && !future->completed()) {
      return false;
    }
    if (future.defined()) {
      WaitReturns::instance().note(one.op_id, end_ns);
    }
    return true;
  });
}

// True if the current finalisation records the run delay. The begin and the end
// of a finalisation get the same answer.
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

// Returns the time of the record; UINT64_MAX if nothing is recorded.
uint64_t recordFinalize(Kind kind, int graph_task, uint32_t flags = 0) {
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    return UINT64_MAX;
  }
  Record record;
  record.kind = kind;
  record.*field::kFinalizeEndGraphTask = uint64_t(graph_task);
  record.flags = flags;
  record.thread = Recorder::threadId();
  // The other clocks are read outside of the interval between the begin's and
  // the end's timestamps.
  if (kind == Kind::kFinalizeEnd) {
    record.timestamp_ns = nowNs();
  }
  record.*field::kFinalizeEndCpuNs = threadCpuNs();
  if (readsRunDelay(kind)) {
    record.*field::kFinalizeEndRunDelayNs = threadRunDelayNs();
    record.flags |= kRunDelayRead;
  }
  if (kind == Kind::kFinalizeBegin) {
    record.timestamp_ns = nowNs();
  }
  recorder.push(record);
  return record.timestamp_ns;
}

void markFinalize(Kind kind, int graph_task, uint32_t flags = 0) {
  static thread_local DeviceTimeline* timeline = nullptr;
  static thread_local auto begin = DeviceTimeline::kNoMark;
  static thread_local int begun = -1;
  if (DeviceTimeline::main() == nullptr || !Recorder::instance().enabled()) {
    return;
  }
  if (kind == Kind::kFinalizeBegin) {
    if (timeline != nullptr) {
      // Drops the mark of an earlier finalisation that had no end.
      timeline->forget(begin);
    }
    timeline = DeviceTimeline::main();
    begin = timeline->mark();
    begun = graph_task;
  } else if (begun == graph_task) {
    Record record;
    record.kind = Kind::kDeviceFinalize;
    record.flags = flags;
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
  latest_graph_task.store(graph_task, std::memory_order_relaxed);
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (awaited().size() >= kMostAwaited) { // left over from failed passes
    awaited().clear();
  }
  engine.queue_callback([graph_task] {
    recordFinalize(Kind::kFinalizeBegin, graph_task);
    markFinalize(Kind::kFinalizeBegin, graph_task);
    // This call must be last: it may move the list that holds the running
    // callback.
    torch::autograd::Engine::get_default_engine().queue_callback([graph_task] {
      markFinalize(Kind::kFinalizeEnd, graph_task);
      noteReturns(graph_task, recordFinalize(Kind::kFinalizeEnd, graph_task));
      recordObservedBuckets(graph_task);
    });
  });
  return graph_task;
}

void beginManualFinalize() {
  manual_graph_task = last_graph_task >= 0
      ? last_graph_task
      : latest_graph_task.load(std::memory_order_relaxed);
  if (manual_graph_task >= 0) {
    recordFinalize(Kind::kFinalizeBegin, manual_graph_task, kManualFinalize);
    markFinalize(Kind::kFinalizeBegin, manual_graph_task, kManualFinalize);
  }
}

void endManualFinalize() {
  const int graph_task = manual_graph_task;
  manual_graph_task = -1;
  if (graph_task >= 0) {
    markFinalize(Kind::kFinalizeEnd, graph_task, kManualFinalize);
    noteReturns(
        graph_task,
        recordFinalize(Kind::kFinalizeEnd, graph_task, kManualFinalize));
  }
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

void worksFor(int graph_task) noexcept {
  works_for = graph_task;
}

} // namespace commprof
