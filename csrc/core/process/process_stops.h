// Observes when this process is stopped and continued: SIGSTOP, a debugger that
// holds all of its threads, a frozen cgroup (version 2). Between stops, this
// uses no CPU time; a thread that polls would use some.
//
// A stop wakes every thread that sleeps in the kernel, so that the thread stops
// too. Two threads sleep only to notice this. One is in clock_nanosleep(),
// which at a stop stores its remaining time, and after the stop sleeps on: this
// gives the begin. The other is in rt_sigtimedwait(), which fails with EINTR
// after a stop (signal(7)): this gives the end. Both times are late by as long
// as the thread waits for a core.
#pragma once

#include <cstdint>

namespace commprof {

// Called on a separate thread for each stop, with times of CLOCK_MONOTONIC.
using StopSink = void (*)(uint64_t begin_ns, uint64_t end_ns);

// Starts the two threads unless this process has them; they live as long as the
// process. A forked child has none until it calls this function. Not
// thread-safe. If the threads cannot be started, or the kernel behaves
// differently, stops are not observed.
void watchStops(StopSink sink) noexcept;

} // namespace commprof
