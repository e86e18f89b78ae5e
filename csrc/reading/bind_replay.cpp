// Python bindings of the replay: no logic here. The GIL is held during a
// replay, because a plan's memory serves only one replay at a time.
#include "reading/bind_replay.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "replay/moved_events.h"
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

template <class T>
py::array_t<T> arrayOf(const std::vector<T>& values) {
  return py::array_t<T>(py::ssize_t(values.size()), values.data());
}

} // namespace

void bindReplay(py::module_& m) {
  py::class_<replay::Plan>(
      m,
      "ReplayPlan",
      "Recorded events of all ranks (the ranks' programs), prepared for "
      "several replays.")
      .def(
          py::init([](const Column<int64_t>& first,
                      const Column<int64_t>& kind,
                      const Column<int64_t>& row,
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
                      const Column<bool>& outside,
                      size_t marks) {
            const replay::Programs programs = {
                spanOf(first),
                spanOf(kind),
                spanOf(row),
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
                spanOf(outside)};
            return replay::Plan(programs, calls, marks);
          }),
          py::arg("first"),
          py::arg("kind"),
          py::arg("row"),
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
          py::arg("outside"),
          py::arg("marks"))
      .def(
          "times",
          [](replay::Plan& plan,
             const Column<double>& own,
             const Column<double>& extra,
             const Column<double>& transfer,
             const std::optional<Column<bool>>& free)
              -> std::optional<py::array_t<double>> {
            const replay::Changed changed = {
                spanOf(own),
                spanOf(extra),
                spanOf(transfer),
                free ? spanOf(*free) : std::span<const bool>()};
            const std::optional<std::vector<double>> times =
                plan.times(changed);
            if (!times) {
              return std::nullopt;
            }
            return arrayOf(*times);
          },
          "Returns the times of the ranks' marks (begins and ends of steps), "
          "rank by rank; None if the ranks deadlock.",
          py::arg("own"),
          py::arg("extra"),
          py::arg("transfer"),
          py::arg("free"));
  m.def(
      "last_until",
      [](const Column<double>& edges,
         const Column<int64_t>& first,
         const Column<double>& values,
         const Column<int64_t>& cuts) {
        return arrayOf(
            replay::lastUntil(
                spanOf(edges), spanOf(first), spanOf(values), spanOf(cuts)));
      },
      "Returns, for each value, the index of the largest edge of the value's "
      "rank that is not above the value. If there is no such edge, returns the "
      "index of the rank's first edge.",
      py::arg("edges"),
      py::arg("first"),
      py::arg("values"),
      py::arg("cuts"));
  m.def(
      "moved_events",
      [](const Column<int64_t>& first,
         const Column<double>& edge,
         const Column<bool>& isIssue,
         const Column<int64_t>& cell,
         const Column<double>& length,
         const Column<int64_t>& firstEvent,
         const Column<double>& own,
         const Column<int64_t>& kind,
         const Column<double>& wanted) {
        py::array_t<double> moved(own.size());
        replay::moveEvents(
            {spanOf(first),
             spanOf(edge),
             spanOf(isIssue),
             spanOf(cell),
             spanOf(length)},
            {spanOf(firstEvent), spanOf(own), spanOf(kind)},
            spanOf(wanted),
            {moved.mutable_data(), size_t(moved.size())});
        return moved;
      },
      "Returns the new time of each event on its rank's own clock, which stops "
      "while the rank waits. A cell is one phase of one step of a rank. The "
      "lengths of its pieces are changed, so that all pieces of cell k "
      "together take wanted[k] ns.",
      py::arg("first"),
      py::arg("edge"),
      py::arg("is_issue"),
      py::arg("cell"),
      py::arg("length"),
      py::arg("first_event"),
      py::arg("own"),
      py::arg("kind"),
      py::arg("wanted"));
}

} // namespace commprof
