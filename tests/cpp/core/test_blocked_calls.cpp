#include "core/blocked_calls.h"

#include <chrono>
#include <thread>

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kCallNs = 20'000'000;

void sleepCall() {
  std::this_thread::sleep_for(std::chrono::nanoseconds(kCallNs));
}

void workCall() {
  const uint64_t until_ns = threadCpuNs() + kCallNs;
  while (threadCpuNs() < until_ns) {
  }
}

void quickCall() {}

template <class Function>
uint64_t blockedNs(Function function, bool expected = false) {
  BlockedCall call(expected);
  const uint64_t begin_ns = nowNs();
  function();
  return call.blockedNs(begin_ns);
}

// If ticks were slower, a long call could be taken for a short one.
void ticksAreNoSlowerThanTheirLowestRate() {
  const uint64_t begin = ticks();
  sleepCall();
  CHECK(ticks() - begin >= leastTicks(kCallNs));
  CHECK(leastTicks(kLongCallNs) > 0);
}

// The first calls of a thread are measured, so each check runs on a new thread.
template <class Function>
void onNewThread(Function check) {
  std::thread thread(check);
  thread.join();
}

void aSleepingCallIsBlockedForItsWholeTime() {
  onNewThread([] {
    const uint64_t blocked_ns = blockedNs(sleepCall);
    CHECK(blocked_ns > kCallNs * 9 / 10);
  });
}

void onlyTheSleepOfACallCounts() {
  onNewThread([] {
    const uint64_t begin_ns = nowNs();
    const uint64_t blocked_ns = blockedNs([] {
      workCall();
      sleepCall();
    });
    CHECK(blocked_ns > kCallNs * 9 / 10);
    CHECK(blocked_ns + kCallNs <= nowNs() - begin_ns);
  });
}

void aWorkingCallIsNotBlocked() {
  onNewThread([] {
    for (int i = 0; i < 3; ++i) {
      CHECK_EQ(blockedNs(workCall), 0u);
    }
  });
}

// After the first calls of a thread, only calls that follow a long call are
// measured.
void quickCallsAreNotMeasuredForEver() {
  onNewThread([] {
    for (int i = 0; i < 100; ++i) {
      CHECK_EQ(blockedNs(quickCall), 0u);
    }
    CHECK_EQ(blockedNs(sleepCall), 0u);
    CHECK(blockedNs(sleepCall) > 0);
    for (int i = 0; i < 100; ++i) {
      blockedNs(quickCall);
    }
    CHECK(blockedNs(sleepCall, /*expected=*/true) > 0);
  });
}

void aWaitInsideOrAroundACallIsCountedOnce() {
  onNewThread([] {
    ThreadWaits& waits = ThreadWaits::here();
    const auto waiting = [&] {
      sleepCall();
      ++waits.ended;
    };
    CHECK_EQ(blockedNs(waiting, true), 0u);
    ++waits.open;
    CHECK_EQ(blockedNs(sleepCall, true), 0u);
    --waits.open;
    CHECK(blockedNs(sleepCall, true) > 0);
  });
}

} // namespace

int main() {
  ticksAreNoSlowerThanTheirLowestRate();
  aSleepingCallIsBlockedForItsWholeTime();
  onlyTheSleepOfACallCounts();
  aWorkingCallIsNotBlocked();
  quickCallsAreNotMeasuredForEver();
  aWaitInsideOrAroundACallIsCountedOnce();
  return check::report();
}
