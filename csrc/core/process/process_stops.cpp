#include "core/process/process_stops.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <system_error>

#include "base/clock.h"
#include "base/threads.h"

namespace commprof {

namespace {

// One hour.
constexpr uint64_t kSleepNs = 3'600'000'000'000;
constexpr time_t kSleepS = time_t(kSleepNs / 1'000'000'000);
// Gives the thread in sleepOnAndOn() time to store the begin of a stop.
constexpr timespec kGrace{0, 5'000'000};

// The present sleep of the thread in sleepOnAndOn(). When a stop begins, the
// kernel stores the rest of the sleep in `remaining`.
struct Sleep {
  std::atomic<uint64_t> due_ns{0};
  volatile timespec remaining{0, -1}; // -1: no stop yet
};
constinit Sleep g_sleep;

// Returns when the last stop began; 0 if there was no stop in this sleep.
uint64_t lastStopNs() noexcept {
  const uint64_t due_ns = g_sleep.due_ns.load();
  if (due_ns == 0) {
    return 0;
  }
  const time_t seconds = g_sleep.remaining.tv_sec;
  const long nanoseconds = g_sleep.remaining.tv_nsec;
  if (nanoseconds < 0) {
    return 0;
  }
  const uint64_t remaining_ns =
      uint64_t(seconds) * 1'000'000'000 + uint64_t(nanoseconds);
  return due_ns - remaining_ns;
}

void sleepOnAndOn() noexcept {
  const timespec length{kSleepS, 0};
  // The remaining time includes the timer slack, so the slack is set to its
  // minimum.
  (void)prctl(PR_SET_TIMERSLACK, 1UL);
  for (;;) {
    g_sleep.remaining.tv_nsec = -1;
    g_sleep.due_ns.store(nowNs() + kSleepNs);
    // A direct system call, because a tool may have replaced clock_nanosleep()
    // by a function of its own, which would read `remaining`.
    const long failed = syscall(
        SYS_clock_nanosleep,
        CLOCK_MONOTONIC,
        0,
        &length,
        const_cast<timespec*>(&g_sleep.remaining));
    if (failed != 0 && errno != EINTR) {
      return;
    }
  }
}

void awaitEnds(StopSink sink) noexcept {
  const uint64_t no_signal = 0;
  const timespec length{kSleepS, 0};
  uint64_t known_ns = 0;
  for (;;) {
    const long got = syscall(
        SYS_rt_sigtimedwait, &no_signal, nullptr, &length, sizeof(no_signal));
    const uint64_t end_ns = nowNs();
    if (got >= 0 || (errno != EINTR && errno != EAGAIN)) {
      return;
    }
    if (errno == EAGAIN) {
      continue;
    }
    const uint64_t begin_ns = lastStopNs();
    // The begin of this stop is not known: it is not stored yet, or the next
    // sleep has overwritten it.
    if (begin_ns == 0 || begin_ns == known_ns) {
      clock_nanosleep(CLOCK_MONOTONIC, 0, &kGrace, nullptr);
      known_ns = lastStopNs();
      continue;
    }
    known_ns = begin_ns;
    if (begin_ns < end_ns) {
      sink(begin_ns, end_ns);
    }
  }
}

} // namespace

void watchStops(StopSink sink) noexcept {
  static constinit std::atomic<pid_t> watched{0};
  if (watched.exchange(getpid()) == getpid()) {
    return;
  }
  try {
    startHelper("commprof-asleep", &sleepOnAndOn)->detach();
    startHelper("commprof-stops", [sink] { awaitEnds(sink); })->detach();
  } catch (const std::exception&) {
  }
}

} // namespace commprof
