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
      "Returns a random name for shared memory.");
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
          "Rank 0 of a host creates the memory. The other ranks open it, after "
          "rank 0 has created it.",
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
          "Waits for the other ranks, and takes over the segment.",
          py::arg("segment"),
          py::arg("name"),
          py::arg("rank"),
          py::arg("global_ranks"),
          py::arg("slot_bytes"),
          py::arg("timeout_ms"));
  m.def(
      "shm_backend",
      &makeShmBackend,
      "Makes a backend that runs the collectives that it supports in the "
      "team's shared memory. All other operations go to `wrapped`, which has "
      "the same ranks as the team.",
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
      "Makes a backend for ranks on several hosts. It runs barriers and "
      "all-reduces, except for unsupported tensors and reductions; all other "
      "operations go to `wrapped`. `team` has the ranks of this host. `across` "
      "has the ranks with this rank's index in the team of each host. `owners` "
      "is the number of ranks on the smallest host.",
      py::arg("wrapped"),
      py::arg("team"),
      py::arg("across").none(true),
      py::arg("owners"));
}

} // namespace commprof::tune
