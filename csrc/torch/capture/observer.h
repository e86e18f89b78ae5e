// Sees every c10d collective of the process, whoever issues it.
#pragma once

#include <string>
#include <vector>

namespace commprof {

// Places a boxed kernel in front of each kernel that the dispatcher holds for a
// `c10d::` operator (CPU, CUDA, PrivateUse1 and sparse keys). The kernel
// records the issue, calls the one it replaced, and returns that one's Work as
// a TimedWork. Results, names and DDP's fused copy-and-divide are untouched.
// Returns the operators covered. Idempotent. Call with no collective running.
std::vector<std::string> installObserver();

// Puts the original kernels back. Call with no collective running.
void uninstallObserver();

} // namespace commprof
