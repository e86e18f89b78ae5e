#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "tune/shm/collectives.h"

using namespace commprof::shm;

namespace {

constexpr int kSize = 3;
constexpr auto kTimeout = std::chrono::milliseconds(400);

enum Exit { kNamed = 10, kUnnamed = 11, kWrongSum = 12, kEndless = 13 };

void repeatAllReduce(Team& team) {
  std::vector<float> data(100000);
  for (int i = 0; i < 1000000; ++i) {
    std::fill(data.begin(), data.end(), float(team.rank() + i % 5));
    allReduce(
        team,
        reinterpret_cast<std::byte*>(data.data()),
        data.size(),
        Element::kF32,
        Reduction::kSum);
    for (const float x : data) {
      if (x != float(3 + 3 * (i % 5))) {
        _exit(kWrongSum);
      }
    }
  }
}

// A single-stepped rank is slow, so it arrives last at each barrier.
void repeatBarrier(Team& team) {
  for (;;) {
    team.arriveAndWait();
  }
}

[[noreturn]] void runUntilFailure(
    const std::string& name,
    int rank,
    int victim,
    void (*work)(Team&),
    Segment* segment) {
  TeamOptions options;
  options.name = name;
  options.rank = rank;
  options.size = kSize;
  options.slot_bytes = 65536;
  options.timeout = kTimeout;
  alarm(20);
  const std::string culprit = "rank " + std::to_string(victim) + " ";
  try {
    Team team(options, segment ? std::move(*segment) : Team::reserve(options));
    work(team);
  } catch (const TeamError& error) {
    _exit(std::strstr(error.what(), culprit.c_str()) ? kNamed : kUnnamed);
  }
  _exit(kEndless);
}

bool isRemovedFromDevShm(const std::string& name) {
  DIR* directory = opendir("/dev/shm");
  bool gone = true;
  while (const dirent* entry = readdir(directory)) {
    gone = gone && name != std::string("/") + entry->d_name;
  }
  closedir(directory);
  return gone;
}

using Fate = std::function<void(pid_t)>;

Fate signalAfterDelay(int number, int delay_us) {
  return [=](pid_t victim) {
    usleep(useconds_t(delay_us));
    kill(victim, number);
  };
}

// Single steps also stop the victim between its arrival at a barrier and its
// release of the other ranks. With `number` 0, the victim stays stopped.
Fate singleStepThenSignal(int number, int steps) {
  return [=](pid_t victim) {
    usleep(20000);
    int status = 0;
    CHECK(ptrace(PTRACE_SEIZE, victim, nullptr, nullptr) == 0);
    CHECK(ptrace(PTRACE_INTERRUPT, victim, nullptr, nullptr) == 0);
    waitpid(victim, &status, 0);
    for (int i = 0; i < steps && WIFSTOPPED(status); ++i) {
      ptrace(PTRACE_SINGLESTEP, victim, nullptr, nullptr);
      waitpid(victim, &status, 0);
    }
    CHECK(WIFSTOPPED(status));
    if (number != 0) {
      kill(victim, number);
    }
  };
}

void testOthersNameTheVictim(
    int victim,
    void (*work)(Team&),
    const Fate& fate) {
  TeamOptions options;
  options.name = Team::makeName();
  options.size = kSize;
  options.slot_bytes = 65536;
  Segment segment = Team::reserve(options);
  pid_t pids[kSize];
  for (int rank = 0; rank < kSize; ++rank) {
    pids[rank] = fork();
    if (pids[rank] == 0) {
      // The child does not inherit the parent's mapping. Rank 1 opens the
      // segment, but rank 0 would create a new one.
      TeamOptions own = options;
      own.rank = 1;
      Segment opened = Team::reserve(own);
      runUntilFailure(options.name, rank, victim, work, &opened);
    }
  }
  fate(pids[victim]);
  const auto begin = std::chrono::steady_clock::now();
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank != victim) {
      int status = 0;
      waitpid(pids[rank], &status, 0);
      CHECK_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, int(kNamed));
    }
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took < kTimeout + std::chrono::seconds(3));
  kill(pids[victim], SIGKILL);
  waitpid(pids[victim], nullptr, 0);
  segment.unlinkName();
  CHECK(isRemovedFromDevShm(options.name));
}

// A forked child does not inherit the segment and may use the segment's
// addresses for other memory.
void testAForkedChildLeavesTheSegmentAlone() {
  constexpr size_t kBytes = 1 << 16;
  const std::string name = Segment::randomName();
  std::optional<Segment> segment(Segment::create(name, kBytes, {}));
  const pid_t child = fork();
  if (child == 0) {
    void* const reused = mmap(
        segment->data(),
        kBytes,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
        -1,
        0);
    segment.reset();
    // msync() fails if the memory is not mapped.
    _exit(msync(reused, kBytes, MS_ASYNC) == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(!isRemovedFromDevShm(name));
  segment.reset();
  CHECK(isRemovedFromDevShm(name));
}

} // namespace

int main(int argc, char** argv) {
  const int tries = argc > 1 ? std::atoi(argv[1]) : 5;
  std::mt19937 random(1);
  for (int i = 0; i < tries; ++i) {
    const int victim = int(random() % kSize);
    const int delay_us = 30000 + int(random() % 30000);
    testOthersNameTheVictim(
        victim,
        repeatAllReduce,
        signalAfterDelay(i % 2 == 0 ? SIGKILL : SIGSTOP, delay_us));
    for (const int number : {SIGKILL, SIGKILL, SIGKILL, 0}) {
      const int steps = 100 + int(random() % 400);
      testOthersNameTheVictim(
          int(random() % kSize),
          repeatBarrier,
          singleStepThenSignal(number, steps));
    }
  }
  testAForkedChildLeavesTheSegmentAlone();
  return check::report();
}
