// Joins this plugin's handle of an event and the handle of the user's plugin
// (user_plugin.h) into one handle for NCCL. If this plugin has no handle, NCCL
// gets the handle of the user's plugin. Otherwise NCCL gets this plugin's
// handle, and the user's handle is kept beside it for as long as this plugin
// knows its own.
//
// No function but the first allocates, locks or calls into the system.
#pragma once

#include "nccl_plugin/handle.h"

namespace commprof::nccl {

// Makes room, once; without room no user's handle is kept. Throws
// std::runtime_error if there is no memory.
void mapHandlePairs();
// Returns the handle that NCCL gets.
void* joinHandles(Handle ours, void* users) noexcept;
// Returns the user's handle of an event; null if there is none, or if it is no
// longer known.
void* usersHandle(void* joined) noexcept;

} // namespace commprof::nccl
