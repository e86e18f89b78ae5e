// Python bindings of the microbenchmark's loop.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindMicrobench(pybind11::module_& m);

} // namespace commprof
