// Python stacks of the threads that issue operations.
#pragma once

#include "core/record.h"

namespace commprof {

// True if stacks are recorded; costs one relaxed load.
bool stacksEnabled() noexcept;

// Switches the recording of stacks; `most` is the number of operations, from
// now on, whose stacks are recorded; 0 means all. Threads that issue at the
// same time may record a few more.
void setStacks(bool on, uint32_t most) noexcept;

// Records the stack of the calling thread for the issued operation; does
// nothing on a thread without Python frames. Acquires the GIL. A stack that is
// new to this process is written once, as a block of its own.
void recordStack(const Record& issue);

} // namespace commprof
