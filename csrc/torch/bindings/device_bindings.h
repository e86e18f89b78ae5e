// Streams and coalesced calls, for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindDevices(pybind11::module_& m);

} // namespace commprof
