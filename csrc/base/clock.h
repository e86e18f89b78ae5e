// Clocks. All times are in nanoseconds.
#pragma once

#include <sys/resource.h>
#include <time.h>

#include <cstdint>

namespace commprof {

// CLOCK_MONOTONIC: never set, and the same clock for all processes of a host.
// Python's time.monotonic_ns() reads the same clock.
inline uint64_t nowNs() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000ull + uint64_t(t.tv_nsec);
}

// A counter that rises steadily and is cheaper to read than a clock. Its rate
// differs between machines: see leastTicks(). The vDSO's clocks read the same
// counter, so a program that may read those clocks may read the counter.
inline uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return nowNs();
#endif
}

// Returns the number of ticks() in `ns` at the lowest possible rate of the
// counter. After fewer ticks, less time than `ns` has passed.
inline uint64_t leastTicks(uint64_t ns) noexcept {
#if defined(__aarch64__)
  uint64_t hz;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hz));
  return ns * (hz / 1'000'000) / 1000;
#else
  return ns; // x86-64 counts at 1 GHz or more
#endif
}

inline uint64_t threadCpuNs() noexcept {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return uint64_t(t.tv_sec) * 1000000000ull + uint64_t(t.tv_nsec);
}

inline uint64_t processCpuNs() noexcept {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return uint64_t(t.tv_sec) * 1000000000ull + uint64_t(t.tv_nsec);
}

// Returns how often the calling thread has given up its core to wait.
inline uint64_t threadBlocks() noexcept {
  rusage use{};
  getrusage(RUSAGE_THREAD, &use);
  return uint64_t(use.ru_nvcsw);
}

// Returns for how many ns the calling thread was runnable but had no core, from
// /proc/thread-self/schedstat (second field); 0 if the kernel reports none.
uint64_t threadRunDelayNs() noexcept;

} // namespace commprof
