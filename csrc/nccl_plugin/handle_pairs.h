// One handle for NCCL of an event of which this plugin and the user's
// (user_plugin.h) have one each. It is the user's where this plugin has none;
// else it is this plugin's, and the user's is kept beside it for as long as
// this plugin knows its own.
//
// No function but the first allocates, locks or calls into the system.
#pragma once

#include "nccl_plugin/handle.h"

namespace commprof::nccl {

// Makes room, once; without it no user's handle is kept. Throws
// std::runtime_error if there is no memory.
void mapHandlePairs();
// Returns the handle that NCCL gets.
void* joinHandles(Handle ours, void* users) noexcept;
// Returns the user's handle of an event; null if there is none, or none is
// known any more.
void* usersHandle(void* joined) noexcept;

} // namespace commprof::nccl
