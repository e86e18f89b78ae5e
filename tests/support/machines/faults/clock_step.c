// Preloaded library that steps one process's wall clock by CLOCK_STEP_S
// seconds, CLOCK_STEP_AFTER_S seconds after the process first reads a clock.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long begin_s = -1;

static int stepped(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  if (begin_s < 0) {
    begin_s = now.tv_sec;
  }
  return now.tv_sec - begin_s >= atoll(getenv("CLOCK_STEP_AFTER_S"));
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  const long failed = syscall(SYS_clock_gettime, clock, time);
  if (!failed && clock == CLOCK_REALTIME && stepped()) {
    time->tv_sec += atoll(getenv("CLOCK_STEP_S"));
  }
  return (int)failed;
}

int gettimeofday(struct timeval* time, void* zone) {
  struct timespec now;
  (void)zone;
  const int failed = clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return failed;
}

time_t time(time_t* where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) {
    *where = now.tv_sec;
  }
  return now.tv_sec;
}
