#include "tune/torch/bindings/bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tune/torch/shm/hierarchical_backend.h"
#include "tune/torch/shm/shm_backend.h"

namespace commprof::tune {

namespace py = pybind11;

void bindShm(py::module_& m) {
  py::register_exception<shm::SegmentError>(
      m, "SegmentError", PyExc_RuntimeError);
  m.def(
      "shm_name",
      &shm::Team::makeName,
      "Returns a random name for shared memory, which nobody can guess.");
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
          "On rank 0 of a host, creates the memory. On the other ranks, opens "
          "it: call it there once rank 0 has created it.",
          py::arg("name"),
          py::arg("rank"),
          py::arg("size"),
          py::arg("slot_bytes"));
  py::class_<shm::Team, std::shared_ptr<shm::Team>>(
      m, "Team", "The ranks of one host, connected by shared memory.")
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
          "Joins the other ranks; owns the segment from now on.",
          py::arg("segment"),
          py::arg("name"),
          py::arg("rank"),
          py::arg("global_ranks"),
          py::arg("slot_bytes"),
          py::arg("timeout_ms"));
  m.def(
      "shm_backend",
      &makeShmBackend,
      "Makes a backend that runs collectives in the team's shared memory, and "
      "leaves all other operations to `wrapped`. The team has all ranks of "
      "`wrapped`.",
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
      "Makes a backend for ranks on several hosts, which runs all-reduces "
      "itself and leaves all other operations to `wrapped`. `team` has this "
      "host's ranks; `across` has one rank of each host, all with this rank's "
      "index in their teams. `owners`: number of ranks on the smallest host.",
      py::arg("wrapped"),
      py::arg("team"),
      py::arg("across").none(true),
      py::arg("owners"));
}

} // namespace commprof::tune
