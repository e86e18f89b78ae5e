// Reads pickles of plain values without running any code that they contain.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace commprof {

// Executes the instructions that build numbers, texts, lists, tuples and
// dictionaries. For any other instruction, throws py::value_error with the same
// message as commprof's reader in Python
// (recordings/flight_recorder_pickle.py). The caller holds the GIL.
pybind11::object readPlainPickle(std::string_view data);

void bindPickles(pybind11::module_& m);

} // namespace commprof
