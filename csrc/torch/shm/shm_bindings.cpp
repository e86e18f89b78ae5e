#include "torch/shm/shm_bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "torch/shm/shm_backend.h"

namespace commprof {

namespace py = pybind11;

void bindShm(py::module_& m) {
  py::register_exception<shm::SegmentError>(
      m, "SegmentError", PyExc_RuntimeError);
  m.def(
      "shm_name",
      &shm::Team::makeName,
      "A name for shared memory that nobody can guess.");
  py::class_<shm::Segment>(m, "Segment", "Mapped shared memory.")
      .def(
          py::init([](const std::string& name,
                      int rank,
                      int size,
                      size_t slot_bytes) {
            shm::TeamOptions options;
            options.name = name;
            options.rank = rank;
            options.size = size;
            options.slot_bytes = slot_bytes;
            return shm::Team::reserve(options);
          }),
          "Rank 0 of a host creates it, then the others open it.",
          py::arg("name"),
          py::arg("rank"),
          py::arg("size"),
          py::arg("slot_bytes"));
  m.def(
      "shm_backend",
      [](const c10::intrusive_ptr<c10d::Backend>& wrapped,
         shm::Segment& segment,
         const std::string& name,
         std::vector<int> global_ranks,
         size_t slot_bytes,
         int64_t timeout_ms) {
        const py::gil_scoped_release release;
        shm::TeamOptions options;
        options.name = name;
        options.rank = wrapped->getRank();
        options.size = wrapped->getSize();
        options.global_ranks = std::move(global_ranks);
        options.slot_bytes = slot_bytes;
        options.timeout = std::chrono::milliseconds(timeout_ms);
        return makeShmBackend(
            wrapped, std::make_shared<shm::Team>(options, std::move(segment)));
      },
      "A backend over `wrapped` whose ranks are all on this host; meets them.",
      py::arg("wrapped"),
      py::arg("segment"),
      py::arg("name"),
      py::arg("global_ranks"),
      py::arg("slot_bytes"),
      py::arg("timeout_ms"));
}

} // namespace commprof
