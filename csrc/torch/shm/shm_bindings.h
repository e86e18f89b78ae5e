// Python bindings of the collectives in shared memory.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindShm(pybind11::module_& m);

} // namespace commprof
