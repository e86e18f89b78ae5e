// Python bindings of the microbenchmark's loop: no logic here.
//
// The operations run without the GIL.
#include "tune/torch/bindings/bindings.h"

#include <pybind11/stl.h>

#include "tune/torch/microbench/collective_call.h"

namespace commprof::tune {

namespace py = pybind11;

void bindMicrobench(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<CollectiveCall, std::unique_ptr<CollectiveCall, DeleteWithoutGil>>(
      m,
      "CollectiveCall",
      "One operation of the microbenchmark, with fixed buffers on the CPU.")
      .def(
          py::init([](c10::intrusive_ptr<c10d::ProcessGroup> group,
                      std::string op,
                      at::Tensor source,
                      at::Tensor target,
                      std::string redop,
                      int64_t root) {
            return CollectiveCall(
                std::move(group),
                {std::move(op),
                 std::move(redop),
                 root,
                 std::move(source),
                 std::move(target)});
          }),
          py::arg("group"),
          py::arg("op"),
          py::arg("source"),
          py::arg("target"),
          py::arg("redop"),
          py::arg("root"))
      .def(
          "__call__",
          &CollectiveCall::run,
          "Issues the operation and waits for its result.",
          NoGil())
      .def(
          "sample",
          &CollectiveCall::sample,
          "Runs the operation `iterations` times. Returns the times at which "
          "each call begins and ends, in ns of CLOCK_MONOTONIC. `meet` runs "
          "before each call and is not timed.",
          py::arg("iterations"),
          py::arg("meet").none(true),
          NoGil());
}

} // namespace commprof::tune
