// Python bindings for streams, coalesced calls and futures. No logic here.
//
// The GIL is released during waits for a future.
#include "torch/bindings/bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <optional>
#include <utility>

#include "torch/capture/completion.h"
#include "torch/capture/ddp/finalize.h"
#include "torch/capture/future_waits.h"
#include "torch/capture/timed_work.h"
#include "torch/device/device_events.h"

namespace py = pybind11;

namespace commprof {

namespace {

// A stream in Python: (device's index, stream's id), or None.
using PythonStream = std::optional<std::pair<int64_t, int64_t>>;

StreamOrCurrent streamOf(const PythonStream& stream) {
  return stream ? StreamOrCurrent({stream->first, stream->second})
                : std::nullopt;
}

class PythonStreamWait {
 public:
  PythonStreamWait(const PythonStream& stream, CollectiveId behind)
      : stream_(streamOf(stream)), behind_(behind) {}
  void enter() {
    wait_ = std::make_unique<StreamWait>(stream_, behind_);
  }
  void exit() {
    wait_.reset();
  }

 private:
  const StreamOrCurrent stream_;
  const CollectiveId behind_;
  std::unique_ptr<StreamWait> wait_;
};

void bindStreams(py::module_& m) {
  py::class_<CollectiveId>(
      m, "CollectiveId", "A collective's identity, for StreamWait.");
  py::class_<PythonStreamWait>(
      m,
      "StreamWait",
      "Context manager around a call that makes `stream` wait for the "
      "collective `behind`. If `stream` is the calling thread's current "
      "stream, the length of the wait is recorded.")
      .def(
          py::init<const PythonStream&, CollectiveId>(),
          py::arg("stream"),
          py::arg("behind"))
      .def("__enter__", &PythonStreamWait::enter)
      .def("__exit__", [](PythonStreamWait& wait, const py::args&) {
        wait.exit();
      });
  m.def(
      "last_on_stream",
      [](const PythonStream& stream) -> std::unique_ptr<CollectiveId> {
        const CollectiveId found = lastOnStream(streamOf(stream));
        return found.op_id == 0 ? nullptr
                                : std::make_unique<CollectiveId>(found);
      },
      "Returns the last collective that the stream ran or waited for. Returns "
      "None if there is none, or if a StreamWait for the collective began "
      "later. `stream`: the device's index and the stream's id; None: the "
      "calling thread's current stream.",
      py::arg("stream"));
}

} // namespace

void bindDevices(py::module_& m) {
  bindStreams(m);
  m.def(
      "begin_coalescing",
      &beginCoalescing,
      "Begins a coalesced call: operations that this thread issues from now on "
      "are launched together.");
  m.def(
      "end_coalescing",
      &endCoalescing,
      "Ends a coalesced call. Returns a wrapper of `work` that records waits, "
      "or None if `work` is None.",
      py::arg("work"));
  m.def(
      "begin_manual_finalize",
      &beginManualFinalize,
      "Called before a script's own call of DDP.finalize_backward().");
  m.def(
      "end_manual_finalize",
      &endManualFinalize,
      "Called after a script's own call of DDP.finalize_backward().");
  m.def(
      "abandon_coalescing",
      &abandonCoalescing,
      "Ends a coalesced call for which the backend raised an error.");
}

// torch._C.Future
using PythonFuture = std::shared_ptr<torch::jit::PythonFutureWrapper>;

void bindFutures(py::module_& m) {
  m.def(
      "note_future",
      [](c10d::Work& work, const PythonFuture& future) {
        const auto* timed = dynamic_cast<const TimedWork*>(&work);
        if (timed != nullptr && future->fut && Recorder::instance().enabled()) {
          noteFuture(future->fut, timed->awaited());
        }
      },
      "Makes waits for `future`, which `work` returned, count as waits for the "
      "work's collective.",
      py::arg("work"),
      py::arg("future"));
  m.def(
      "last_issued",
      [] { return lastIssued().op_id; },
      "Returns the id of the operation that this thread issued last; 0 if "
      "there is none.");
  m.def(
      "note_last_issued",
      [](const PythonFuture& future) {
        if (future->fut && Recorder::instance().enabled()) {
          noteFuture(future->fut, lastIssued());
        }
      },
      "Makes waits for `future` count as waits for the operation that this "
      "thread issued last.",
      py::arg("future"));
  m.def(
      "wait_future",
      [](const PythonFuture& future) {
        const py::gil_scoped_release release;
        waitForFuture(*future->fut);
      },
      "Waits for a collective's future and records the wait. Returns "
      "immediately for any other future.",
      py::arg("future"));
  m.def(
      "follow_futures",
      [](const PythonFuture& child, const std::vector<PythonFuture>& parents) {
        std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
        for (const PythonFuture& parent : parents) {
          futures.push_back(parent->fut);
        }
        followFutures(child->fut, futures);
      },
      "Makes waits for `child` count as waits for the last of `parents` that "
      "belongs to a collective.",
      py::arg("child"),
      py::arg("parents"));
  m.def(
      "inner_work",
      [](c10d::Work& work) {
        const auto* timed = dynamic_cast<const TimedWork*>(&work);
        return timed == nullptr ? c10::intrusive_ptr<c10d::Work>()
                                : timed->inner();
      },
      "Returns the backend's Work that `work` wraps. None if `work` is not a "
      "wrapper that the profiler made.",
      py::arg("work"));
}

} // namespace commprof
