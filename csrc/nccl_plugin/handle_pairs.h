// Joins this plugin's handle of an event and the handle of the user's plugin
// (user_plugin.h) into one handle for NCCL. NCCL gets this plugin's handle, and
// the user's handle is stored beside it. If this plugin has no handle, NCCL
// gets the user's handle, or a Tag::kUsers if that handle's bits look like a
// tag.
//
// Only mapHandlePairs() allocates, locks or makes system calls.
#pragma once

#include "nccl_plugin/handle.h"

namespace commprof::nccl {

// Makes room for the user's handles, once. Without room, these handles are not
// kept. Throws std::runtime_error if there is no memory.
void mapHandlePairs();
// Returns the handle that NCCL gets.
void* joinHandles(Handle ours, void* users) noexcept;
// Returns the user's handle of an event. Null if there is none, or if the slot
// was reused.
void* usersHandle(void* joined) noexcept;

} // namespace commprof::nccl
