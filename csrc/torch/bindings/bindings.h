// Parts of the Python bindings, which are defined in several files.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindHosts(pybind11::module_& m); // clocks and arrivals of several ranks
void bindFutures(pybind11::module_& m); // waits for futures
void bindDevices(pybind11::module_& m); // streams and coalesced calls

} // namespace commprof
