// How ranks compare clocks and exchange arrivals, for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindHosts(pybind11::module_& m);

} // namespace commprof
