// Parts of the Python bindings with files of their own.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "torch/compress/compressing_hook.h"

namespace commprof {

void bindCompression(pybind11::module_& m); // compressors as hooks
void bindConnections(pybind11::module_& m); // between ranks
void bindKernels(pybind11::module_& m); // kernels on tensors, of all files
void bindBlockKernels(pybind11::module_& m); // of these those with blocks
void bindLinearKernels(pybind11::module_& m);

} // namespace commprof
