// Observes all c10d collectives of the process.
#pragma once

#include <string>
#include <vector>

namespace commprof {

// Places a recording kernel in front of each kernel of a `c10d::` operator. The
// recording kernel calls the original kernel and wraps its Work in a TimedWork.
// Returns the names of the observed operators. Idempotent. Call it while no
// collective is running.
std::vector<std::string> installObserver();

// Restores the original kernels. Call it while no collective is running.
void uninstallObserver();

} // namespace commprof
