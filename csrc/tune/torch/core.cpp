#include "tune/torch/core.h"

namespace commprof::tune {

namespace {

const CoreFunctions* core_functions = nullptr;

} // namespace

const CoreFunctions& core() noexcept {
  return *core_functions;
}

void setCore(const CoreFunctions& functions) noexcept {
  core_functions = &functions;
}

} // namespace commprof::tune
