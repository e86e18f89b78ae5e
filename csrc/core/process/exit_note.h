// Writes the exit code of a process into its closed trace.
#pragma once

#include <string>

namespace commprof {

// Makes exit() append its status to the trace at `path`, as a block of
// metadata, if the status is neither 0 nor 120 (Python could not flush its
// output). Call it in an exit handler of the interpreter, where the status is
// not known yet. A forked child writes nothing. Does nothing if the C library
// has no on_exit, or the file cannot be opened.
void noteExitStatus(const std::string& path) noexcept;

} // namespace commprof
