// Waits for futures and the Work behind, for Python: no logic here.
#include "torch/bindings/future_bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "torch/capture/future_waits.h"
#include "torch/capture/timed_work.h"

namespace py = pybind11;

namespace commprof {

// torch._C.Future
using PythonFuture = std::shared_ptr<torch::jit::PythonFutureWrapper>;

void bindFutures(py::module_& m) {
  m.def(
      "wait_future",
      [](const PythonFuture& future) {
        const py::gil_scoped_release release;
        waitForFuture(*future->fut);
      },
      "Blocks until a collective's future is complete, and records for how "
      "long; returns at once for any other future.",
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
      "Who waits for `child` waits for the last of `parents` that is a "
      "collective's.",
      py::arg("child"),
      py::arg("parents"));
  m.def(
      "inner_work",
      [](c10d::Work& work) {
        const auto* timed = dynamic_cast<const TimedWork*>(&work);
        return timed == nullptr ? c10::intrusive_ptr<c10d::Work>()
                                : timed->inner();
      },
      "The backend's own Work behind one that capture handed out; None of any "
      "other.",
      py::arg("work"));
}

} // namespace commprof
