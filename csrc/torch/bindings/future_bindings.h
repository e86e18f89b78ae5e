// Waits for futures, for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindFutures(pybind11::module_& m);

} // namespace commprof
