// Observes every c10d collective of the process, whatever code issues it.
#pragma once

#include <string>
#include <vector>

namespace commprof {

// Places a boxed kernel in front of each kernel that the dispatcher holds for a
// `c10d::` operator (CPU, CUDA, XPU, HPU, PrivateUse1 and sparse keys). The
// boxed kernel records the issue, calls the original kernel, and returns that
// kernel's Work as a TimedWork. Results, operators' names and DDP's fused
// copy-and-divide do not change. Returns the operators that are observed.
// Idempotent. Call it while no collective is running.
std::vector<std::string> installObserver();

// Restores the original kernels. Call it while no collective is running.
void uninstallObserver();

} // namespace commprof
