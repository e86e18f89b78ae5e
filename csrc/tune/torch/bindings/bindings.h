// Python bindings of compressors, shared memory and the microbenchmark, which
// several files define.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>

namespace commprof::tune {

// Deletes an object that may hold the last reference to a process group. The
// group's destructor waits for gloo's threads, which may need the GIL to
// release a tensor. So the GIL must be released first. The calling thread may
// be without the GIL, and Python may have ended.
struct DeleteWithoutGil {
  template <class T>
  void operator()(T* object) const {
    std::optional<pybind11::gil_scoped_release> release;
    if (Py_IsInitialized() && PyGILState_Check()) {
      release.emplace();
    }
    delete object;
  }
};

// Returns a pointer that releases the object without the GIL.
template <class T>
std::shared_ptr<T> releasedWithoutGil(std::shared_ptr<T> object) {
  T* const place = object.get();
  auto* share = new std::shared_ptr<T>(std::move(object));
  return {place, [share](T*) { DeleteWithoutGil()(share); }};
}

void bindShm(pybind11::module_& m); // collectives in shared memory
void bindConnections(pybind11::module_& m); // sockets between ranks
void bindCompression(pybind11::module_& m); // compressors as hooks
void bindKernels(pybind11::module_& m); // compression kernels on plain tensors
void bindMicrobench(pybind11::module_& m); // the microbenchmark's loop

} // namespace commprof::tune
