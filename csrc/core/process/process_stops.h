// Observes when this process is stopped and continued, for example by SIGSTOP,
// a debugger, or a frozen cgroup (version 2). Uses no CPU time between stops.
//
// A stop wakes every thread that sleeps in the kernel. Two threads sleep only
// for this purpose. One is in clock_nanosleep(), which stores its remaining
// time when the stop begins. The other is in rt_sigtimedwait(), which fails
// with EINTR after the stop (signal(7)). The observed times may be late,
// because these threads may have to wait for a core.
#pragma once

#include <cstdint>

namespace commprof {

// Called on a separate thread for each stop, with times of CLOCK_MONOTONIC.
using StopSink = void (*)(uint64_t begin_ns, uint64_t end_ns);

// Starts the two threads, once per process. A forked child must call it again.
// Not thread-safe. If the threads cannot be started, or the kernel behaves
// differently, stops are not observed.
void watchStops(StopSink sink) noexcept;

} // namespace commprof
