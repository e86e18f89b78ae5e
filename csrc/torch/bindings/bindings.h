// Parts of the Python bindings, which are defined in several files.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindHosts(pybind11::module_& m);
void bindFutures(pybind11::module_& m);
void bindDevices(pybind11::module_& m);

} // namespace commprof
