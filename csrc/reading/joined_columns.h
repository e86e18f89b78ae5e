// Helps to join the columns of many ranks.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

namespace commprof {

// Returns the total number of rows if all columns store the same single value
// for all of their rows. Values are the same if their bytes are the same.
// Columns without rows are ignored. Returns -1 for any other columns. The
// caller holds the GIL.
pybind11::ssize_t rowsOfOneValue(
    const pybind11::typing::List<pybind11::array>& columns);

void bindJoinedColumns(pybind11::module_& m);

} // namespace commprof
