#include "core/process/process_stops.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr int kStops = 8;
constexpr uint64_t kStopNs = 50 * kMs;

struct Stop {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};

// A leak checker also stops the process at exit, so these objects are never
// destroyed.
std::mutex& mutex = *new std::mutex;
std::vector<Stop>& observed = *new std::vector<Stop>;

void take(uint64_t begin_ns, uint64_t end_ns) {
  const std::lock_guard<std::mutex> lock(mutex);
  observed.push_back({begin_ns, end_ns});
}

std::vector<Stop> observedSoFar() {
  const std::lock_guard<std::mutex> lock(mutex);
  return observed;
}

void pauseFor(uint64_t ns) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

std::vector<Stop> stopThisProcess() {
  void* const shared = mmap(
      nullptr,
      sizeof(Stop) * kStops,
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  auto* const sent = static_cast<Stop*>(shared);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < kStops; ++i) {
      pauseFor(kStopNs);
      const uint64_t begin_ns = nowNs();
      kill(parent, SIGSTOP);
      pauseFor(kStopNs);
      kill(parent, SIGCONT);
      sent[i] = {begin_ns, nowNs()};
    }
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  CHECK(status == 0);
  return {sent, sent + kStops};
}

// On a loaded machine, some stops are not observed. An observed stop may begin
// up to 1 ms before its signal.
void stopsAreObserved() {
  const std::vector<Stop> sent = stopThisProcess();
  for (int i = 0; i < 500 && observedSoFar().empty(); ++i) {
    pauseFor(10 * kMs);
  }
  const std::vector<Stop> found = observedSoFar();
  CHECK(!found.empty() && found.size() <= size_t(kStops));
  for (const Stop& stop : found) {
    size_t matching = 0;
    for (const Stop& signals : sent) {
      matching += stop.begin_ns + kMs >= signals.begin_ns &&
          stop.begin_ns <= signals.end_ns &&
          stop.end_ns >= signals.begin_ns + kStopNs;
    }
    CHECK_EQ(matching, 1u);
  }
}

void nothingIsObservedWithoutAStop() {
  const size_t before = observedSoFar().size();
  volatile uint64_t sum = 0;
  for (const uint64_t until_ns = nowNs() + 200 * kMs; nowNs() < until_ns;) {
    sum = sum + 1;
  }
  kill(getpid(), SIGCONT);
  CHECK_EQ(observedSoFar().size(), before);
}

} // namespace

int main() {
  watchStops(&take);
  watchStops(&take);
  pauseFor(50 * kMs);
  nothingIsObservedWithoutAStop();
  if (!check::isEmulated()) {
    stopsAreObserved();
  }
  return check::report();
}
