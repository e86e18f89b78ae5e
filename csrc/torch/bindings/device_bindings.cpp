// Streams and coalesced calls, for Python: no logic here.
//
// GIL: held throughout; nothing here waits.
#include "torch/bindings/device_bindings.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <optional>
#include <utility>

#include "torch/capture/completion.h"
#include "torch/device/device_events.h"

namespace py = pybind11;

namespace commprof {

namespace {

// Of Python: (device's index, stream's id), or None.
using PythonStream = std::optional<std::pair<int64_t, int64_t>>;

StreamOrCurrent streamOf(const PythonStream& stream) {
  return stream ? StreamOrCurrent({stream->first, stream->second})
                : std::nullopt;
}

// `with` around it.
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
      m, "CollectiveId", "A collective that something comes behind.");
  py::class_<PythonStreamWait>(
      m,
      "StreamWait",
      "Around a call that makes a stream wait for an event behind a "
      "collective: records for how long the device's stream stands still, if "
      "the calling thread works on that stream.")
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
      "The collective that an event put on the stream now comes behind, if "
      "nobody has waited for it yet; else None. A stream is its device's index "
      "and its id; None is the one that the calling thread works on.",
      py::arg("stream"));
}

} // namespace

void bindDevices(py::module_& m) {
  bindStreams(m);
  m.def(
      "begin_coalescing",
      &beginCoalescing,
      "What this thread issues from now on is launched as one.");
  m.def(
      "end_coalescing",
      &endCoalescing,
      "Gives the Work that stands for it, which is timed; None stays None.",
      py::arg("work"));
  m.def("abandon_coalescing", &abandonCoalescing, "The backend refused it.");
}

} // namespace commprof
