// Writes the exit code of a process into its closed trace.
#pragma once

#include <string>

namespace commprof {

// Makes exit() append its status to the trace at `path`, as a block of
// metadata. A status of 0 or 120 is not written; 120 means that Python could
// not flush its output. Call it in an exit handler of the interpreter. A forked
// child writes nothing. Has no effect if the C library has no on_exit(), if the
// file cannot be opened, or if an earlier call had an effect.
void noteExitStatus(const std::string& path) noexcept;

} // namespace commprof
