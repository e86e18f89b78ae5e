// The Python module of compressors, shared memory and the microbenchmark's
// loop: no logic here.
//
// Some of its types extend types of the core's module. So the core's module is
// imported first.
#include <pybind11/pybind11.h>

#include "torch/core_functions.h"
#include "tune/torch/bindings/bindings.h"
#include "tune/torch/core.h"

#define COMMPROF_TEXT_OF(name) #name
#define COMMPROF_NAME_OF(name) COMMPROF_TEXT_OF(name)

namespace py = pybind11;
using namespace commprof;

namespace {

// Throws ImportError if the core is of another build.
const CoreFunctions& functionsOfCore() {
  const auto module =
      py::module_::import("commprof." COMMPROF_NAME_OF(COMMPROF_MODULE));
  const py::object capsule = module.attr(kCoreFunctionsAttribute);
  if (PyCapsule_IsValid(capsule.ptr(), kCoreFunctionsName) == 0) {
    throw py::import_error(
        "this module was built with another version of commprof than the core "
        "module in this process");
  }
  return *static_cast<const CoreFunctions*>(
      PyCapsule_GetPointer(capsule.ptr(), kCoreFunctionsName));
}

} // namespace

PYBIND11_MODULE(COMMPROF_TUNE_MODULE, m, py::mod_gil_not_used()) {
  m.doc() = "Compressors and shared memory, built for one torch version.";
  tune::setCore(functionsOfCore());
  tune::bindShm(m);
  tune::bindConnections(m);
  tune::bindCompression(m);
  tune::bindKernels(m);
  tune::bindMicrobench(m);
}
