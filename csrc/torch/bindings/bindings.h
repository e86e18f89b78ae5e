// Parts of the Python bindings with files of their own.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace commprof {

void bindHosts(pybind11::module_& m); // clocks and arrivals of several ranks
void bindFutures(pybind11::module_& m); // waits for futures
void bindDevices(pybind11::module_& m); // streams and coalesced calls
void bindShm(pybind11::module_& m); // collectives in shared memory
void bindConnections(pybind11::module_& m); // sockets between ranks
void bindCompression(pybind11::module_& m); // compressors as hooks
void bindKernels(pybind11::module_& m); // compression kernels on plain tensors
void bindMicrobench(pybind11::module_& m); // the microbenchmark's loop

} // namespace commprof
