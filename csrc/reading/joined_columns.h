// Helps to join the columns of many ranks.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

namespace commprof {

// Returns the total number of rows of columns that all store the same value:
// each of them stores a single value for all of its rows, or has no row, and
// these values have the same bytes. -1 for any other columns. The caller holds
// the GIL.
pybind11::ssize_t rowsOfOneValue(
    const pybind11::typing::List<pybind11::array>& columns);

void bindJoinedColumns(pybind11::module_& m);

} // namespace commprof
