#include "torch/bindings/bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "torch/shm/hierarchical_backend.h"
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
  py::class_<shm::Team, std::shared_ptr<shm::Team>>(
      m, "Team", "The ranks of one host over shared memory.")
      .def(
          py::init([](shm::Segment& segment,
                      const std::string& name,
                      int rank,
                      std::vector<int> global_ranks,
                      size_t slot_bytes,
                      int64_t timeout_ms) {
            const py::gil_scoped_release release;
            shm::TeamOptions options;
            options.name = name;
            options.rank = rank;
            options.size = int(global_ranks.size());
            options.global_ranks = std::move(global_ranks);
            options.slot_bytes = slot_bytes;
            options.timeout = std::chrono::milliseconds(timeout_ms);
            return std::make_shared<shm::Team>(options, std::move(segment));
          }),
          "Takes the segment over and meets the others.",
          py::arg("segment"),
          py::arg("name"),
          py::arg("rank"),
          py::arg("global_ranks"),
          py::arg("slot_bytes"),
          py::arg("timeout_ms"));
  m.def(
      "shm_backend",
      &makeShmBackend,
      "A backend over `wrapped` whose ranks are the team's.",
      py::arg("wrapped"),
      py::arg("team"));
  m.def(
      "hierarchical_backend",
      [](c10::intrusive_ptr<c10d::Backend> wrapped,
         std::shared_ptr<shm::Team> team,
         c10::intrusive_ptr<c10d::Backend> across,
         int owners) {
        return makeHierarchicalBackend(
            std::move(wrapped), {std::move(team), std::move(across), owners});
      },
      "A backend over `wrapped` whose ranks are on several hosts, of which the "
      "team is one; `across` joins the ranks of equal place on their hosts.",
      py::arg("wrapped"),
      py::arg("team"),
      py::arg("across").none(true),
      py::arg("owners"));
}

} // namespace commprof
