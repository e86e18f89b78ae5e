// A rank that is killed or stopped at any moment: the others fail in time and
// name it, sums are never wrong, and no name is left in /dev/shm.
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "shm/collectives.h"

using namespace commprof::shm;

namespace {

constexpr int kSize = 3;
constexpr auto kTimeout = std::chrono::milliseconds(400);

enum Exit { kNamed = 10, kUnnamed = 11, kWrongSum = 12, kEndless = 13 };

// What a rank does until it fails; its exit status says how.
[[noreturn]] void train(
    const std::string& name,
    int rank,
    int victim,
    Segment* made) {
  TeamOptions options;
  options.name = name;
  options.rank = rank;
  options.size = kSize;
  options.slot_bytes = 65536;
  options.timeout = kTimeout;
  const std::string culprit = "rank " + std::to_string(victim) + " ";
  try {
    Team team(options, made ? std::move(*made) : Team::reserve(options));
    std::vector<float> data(100000);
    for (int i = 0; i < 1000000; ++i) {
      std::fill(data.begin(), data.end(), float(rank + i % 5));
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
  } catch (const TeamError& error) {
    _exit(std::strstr(error.what(), culprit.c_str()) ? kNamed : kUnnamed);
  }
  _exit(kEndless);
}

bool nameIsGone(const std::string& name) {
  DIR* directory = opendir("/dev/shm");
  bool gone = true;
  while (const dirent* entry = readdir(directory)) {
    gone = gone && name != std::string("/") + entry->d_name;
  }
  closedir(directory);
  return gone;
}

void testOnce(int victim, int signal_number, int delay_us) {
  TeamOptions options;
  options.name = Team::makeName();
  options.size = kSize;
  options.slot_bytes = 65536;
  Segment segment = Team::reserve(options);
  pid_t pids[kSize];
  for (int rank = 0; rank < kSize; ++rank) {
    pids[rank] = fork();
    if (pids[rank] == 0) {
      // The parent's mapping is not inherited: open it again, rank 0 too.
      TeamOptions own = options;
      own.rank = 1;
      Segment opened = Team::reserve(own);
      train(options.name, rank, victim, &opened);
    }
  }
  usleep(useconds_t(delay_us));
  const auto begin = std::chrono::steady_clock::now();
  kill(pids[victim], signal_number);
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
  segment.unlinkName(); // as rank 0 would have at its first meeting
  CHECK(nameIsGone(options.name));
}

} // namespace

// test_shm_failure [TRIES]
int main(int argc, char** argv) {
  const int tries = argc > 1 ? std::atoi(argv[1]) : 20;
  std::mt19937 random(1);
  for (int i = 0; i < tries; ++i) {
    const int victim = int(random() % kSize);
    testOnce(victim, i % 2 == 0 ? SIGKILL : SIGSTOP, 30000 + random() % 30000);
  }
  return check::report();
}
