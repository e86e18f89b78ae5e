// Python bindings of the replay: no logic here. The GIL is released during a
// replay.
#include "reading/bind_replay.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "replay/replay.h"

namespace py = pybind11;

namespace commprof {

namespace {

template <class T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
std::span<const T> spanOf(const Column<T>& column) {
  return {column.data(), size_t(column.size())};
}

} // namespace

void bindReplay(py::module_& m) {
  m.def(
      "replay",
      [](const Column<int64_t>& first,
         const Column<int64_t>& kind,
         const Column<int64_t>& row,
         const Column<double>& own,
         const Column<double>& extra,
         const Column<double>& begin,
         const Column<int64_t>& chained,
         const Column<int64_t>& after,
         const Column<double>& lag,
         const Column<int64_t>& neededFirst,
         const Column<int64_t>& needed,
         const Column<int64_t>& opensFirst,
         const Column<int64_t>& opens,
         const Column<int64_t>& before,
         const Column<int64_t>& issue,
         const Column<int64_t>& end,
         const Column<double>& transfer,
         const Column<bool>& outside,
         size_t marks) -> std::optional<py::array_t<double>> {
        const replay::Programs programs = {
            spanOf(first),
            spanOf(kind),
            spanOf(row),
            spanOf(own),
            spanOf(extra),
            spanOf(begin),
            spanOf(chained),
            spanOf(after),
            spanOf(lag)};
        const replay::Calls calls = {
            {spanOf(neededFirst), spanOf(needed)},
            {spanOf(opensFirst), spanOf(opens)},
            spanOf(before),
            spanOf(issue),
            spanOf(end),
            spanOf(transfer),
            spanOf(outside)};
        std::optional<std::vector<double>> times;
        {
          const py::gil_scoped_release release;
          times = replay::replay(programs, calls, marks);
        }
        if (!times) {
          return std::nullopt;
        }
        return py::array_t<double>(py::ssize_t(times->size()), times->data());
      },
      "Returns the times of the ranks' marks, rank by rank; None if the ranks "
      "deadlock.",
      py::arg("first"),
      py::arg("kind"),
      py::arg("row"),
      py::arg("own"),
      py::arg("extra"),
      py::arg("begin"),
      py::arg("chained"),
      py::arg("after"),
      py::arg("lag"),
      py::arg("needed_first"),
      py::arg("needed"),
      py::arg("opens_first"),
      py::arg("opens"),
      py::arg("before"),
      py::arg("issue"),
      py::arg("end"),
      py::arg("transfer"),
      py::arg("outside"),
      py::arg("marks"));
}

} // namespace commprof
