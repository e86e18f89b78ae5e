// Notes in a closed trace that its process ended with an exit code.
#pragma once

#include <string>

namespace commprof {

// From now on the end of this process by exit() adds its status to the trace
// at `path`, if it is not 0: one more block of metadata behind the last. For
// an exit handler of the interpreter, which does not know the status yet. A
// forked child notes nothing. Does nothing where the C library has no on_exit,
// or the file cannot be opened.
void noteExitStatus(const std::string& path) noexcept;

} // namespace commprof
