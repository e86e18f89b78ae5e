// Access to the functions of the profiler's core, which is a separate module.
#pragma once

#include "torch/core_functions.h"

namespace commprof::tune {

// Valid once setCore() has been called.
const CoreFunctions& core() noexcept;

// Called once, when the module of compressors and shared memory is imported.
void setCore(const CoreFunctions& functions) noexcept;

} // namespace commprof::tune
