#include "reading/joined_columns.h"

#include <cstring>

namespace py = pybind11;

namespace commprof {

py::ssize_t rowsOfOneValue(const py::typing::List<py::array>& columns) {
  py::ssize_t rows = 0;
  py::handle filled; // the first column that has a row
  for (const py::handle item : columns) {
    if (!py::isinstance<py::array>(item)) {
      return -1;
    }
    const auto& column = *py::detail::array_proxy(item.ptr());
    if (py::reinterpret_borrow<py::array>(item).ndim() != 1) {
      return -1;
    }
    if (column.dimensions[0] == 0) {
      continue;
    }
    if (column.strides[0] != 0) {
      return -1;
    }
    rows += column.dimensions[0];
    if (!filled) {
      filled = item;
      continue;
    }
    const auto& first = *py::detail::array_proxy(filled.ptr());
    const auto size =
        size_t(py::reinterpret_borrow<py::array>(filled).itemsize());
    if (column.descr != first.descr ||
        std::memcmp(column.data, first.data, size) != 0) {
      return -1;
    }
  }
  return filled ? rows : -1;
}

void bindJoinedColumns(py::module_& m) {
  m.def(
      "rows_of_one_value",
      &rowsOfOneValue,
      "Returns the total number of rows if all columns store the same single "
      "value for all of their rows; else -1.",
      py::arg("columns"));
}

} // namespace commprof
