// Sees when this process is stopped and when it goes on: SIGSTOP, a debugger
// that holds all of its threads, a frozen cgroup (version 2). Costs no
// processor time in between, where a thread that looks again and again would.
//
// A stop wakes every thread that sleeps in the kernel, so that it stops too. Of
// two threads that do nothing else, one is in clock_nanosleep(), which then
// writes down how much of its time remained, and after the stop sleeps on: so
// the begin is known. The other is in rt_sigtimedwait(), which a stop ends with
// EINTR once it is over (signal(7)): so the end is known. Both are late by as
// long as they wait for a core.
#pragma once

#include <cstdint>

namespace commprof {

// Called by a thread of its own, with CLOCK_MONOTONIC.
using StopSink = void (*)(uint64_t begin_ns, uint64_t end_ns);

// Starts the two threads unless this process has them; they sleep as long as it
// lives. A forked child has none until it calls this. Not for two threads at
// once. Where they cannot be started, or the kernel behaves otherwise, no stop
// is seen.
void watchStops(StopSink sink) noexcept;

} // namespace commprof
