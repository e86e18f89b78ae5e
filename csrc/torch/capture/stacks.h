// Who issued an operation: the Python frames of the issuing thread.
#pragma once

#include "core/record.h"

namespace commprof {

// One relaxed load.
bool stacksEnabled() noexcept;
void setStacks(bool on) noexcept;

// Records the stack of the calling thread for the operation that was issued;
// nothing on a thread without Python frames. Takes the GIL. A stack that is new
// to this process is written out once, as a block of its own.
void recordStack(const Record& issue);

} // namespace commprof
