#pragma once

#include <pybind11/pybind11.h>

namespace commprof {

void bindTraces(pybind11::module_& m);

} // namespace commprof
