// Reads pickles of plain values without running any code of theirs.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace commprof {

// Executes the instructions that build numbers, texts, lists, tuples and
// dictionaries, and refuses all others, as commprof's reader in Python does
// (recordings/flight_recorder_pickle.py), with the same words. Throws
// py::value_error. The GIL is held.
pybind11::object readPlainPickle(std::string_view data);

void bindPickles(pybind11::module_& m);

} // namespace commprof
