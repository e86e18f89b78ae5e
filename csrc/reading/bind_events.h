// See bind_events.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace commprof {

void bindEvents(pybind11::module_& m);

} // namespace commprof
