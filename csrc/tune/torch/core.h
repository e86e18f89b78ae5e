// The functions of the profiler's core, which is a module of its own.
#pragma once

#include "torch/core_functions.h"

namespace commprof::tune {

// Valid once the module was imported.
const CoreFunctions& core() noexcept;

// Called once, when the module is imported.
void setCore(const CoreFunctions& functions) noexcept;

} // namespace commprof::tune
