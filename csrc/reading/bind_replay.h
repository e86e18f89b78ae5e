// Binds the replay of recorded programs to Python.
#pragma once

#include <pybind11/pybind11.h>

namespace commprof {

void bindReplay(pybind11::module_& m);

} // namespace commprof
