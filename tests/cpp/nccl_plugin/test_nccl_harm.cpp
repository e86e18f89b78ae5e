// test_nccl_harm
//     runs the checks
// test_nccl_harm orders VERSION FIRST COUNT
//     plays COUNT random orders of calls with the seeds from FIRST on, and
//     prints each seed that the process survived
// test_nccl_harm until-killed VERSION FILE
//     plays collectives until it is killed, and counts them in FILE
// test_nccl_harm many PLUGIN EVENTS
//     plays EVENTS events, and prints the memory of the process after each
//     tenth of them
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/recorder.h"
#include "nccl_player.h"
#include "trace_file.h"

using namespace commprof;
using nccl_player::Communicator;
using nccl_player::gpuNow;
using nccl_player::kReduceGradients;
using nccl_player::Player;
using nccl_player::tableOf;

namespace {

thread_local bool t_counts = false;
thread_local int t_allocations = 0;
thread_local int t_locks = 0;

} // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t size) {
  t_allocations += t_counts ? 1 : 0;
  return std::malloc(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto lock = reinterpret_cast<int (*)(pthread_mutex_t*)>(
      dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  t_locks += t_counts ? 1 : 0;
  return lock(mutex);
}
#endif

namespace {

void playAtRandom(Player& player, Communicator& c, uint64_t seed, int events) {
  std::mt19937_64 random(seed);
  std::vector<void*> handles{nullptr};
  const auto any = [&]() {
    return random() % 10 == 0 ? reinterpret_cast<void*>(random())
                              : handles[random() % handles.size()];
  };
  const Player::Operation operations[] = {
      kReduceGradients,
      {"AllGather", "ncclInt8", 4096, 0, 2},
      {"Send", "ncclFloat32", 3072, 1, 3},
      {"Recv", "ncclFloat32", 3072, 70'000, 3},
      {"AlltoAll", "ncclFloat32", 3072, 0, 3},
      {"AllReduce", "Unknown", 3072, -1, 200}};
  constexpr int kStates[] = {
      nccl::kSendGpuWait,
      nccl::kSendPeerWait,
      nccl::kSendWait,
      nccl::kRecvWait,
      nccl::kRecvGpuWait,
      99};
  for (int i = 0; i < events; ++i) {
    const auto& operation = operations[random() % 6];
    void* made = nullptr;
    switch (random() % (player.hasGpuTimes() ? 10 : 7)) {
      case 7:
        made = random() % 2 == 0
            ? player.beginProxyOp(
                  c.context, any(), {getpid(), 200, int(random()), 1, 1, 1})
            : player.beginProxyOp(
                  reinterpret_cast<void*>(random()), any(), {1, 0, 1, 1, 1, 0});
        break;
      case 8:
        made = player.beginStep(
            reinterpret_cast<void*>(random()), any(), int(random()));
        break;
      case 9:
        player.state(any(), kStates[random() % 6], random());
        break;
      case 0:
      case 1:
        made = player.call(
            c,
            operation.func,
            operation.datatype,
            operation.count,
            random() % 2 == 0);
        break;
      case 2:
        made = player.launch(c, operation, any());
        break;
      case 3:
      case 4:
        made = player.beginChannel(c, any(), uint8_t(random()), gpuNow());
        break;
      case 5:
        player.endChannel(any(), random() % 5 == 0 ? random() : gpuNow());
        break;
      default:
        player.stop(any());
    }
    if (made != nullptr && handles.size() < 1000) {
      handles.push_back(made);
    } else if (made != nullptr) {
      handles[random() % handles.size()] = made;
    }
  }
}

struct Order {
  uint64_t seed;
  int version;
  int threads;
  int events;
  int others;
};

void survives(const Order& order) {
  Player player(order.version, tableOf(order.version));
  Communicator c{nullptr, (order.seed << 16) + 1, "", 4, 0};
  Communicator none{nullptr, 0, "", 4, 0};
  player.init(c);
  std::vector<std::thread> threads;
  for (int i = 0; i < order.threads; ++i) {
    threads.emplace_back([&, i] {
      playAtRandom(player, c, order.seed * 10 + uint64_t(i), order.events);
    });
  }
  for (int i = 0; i < order.others; ++i) {
    Communicator other{
        nullptr, (order.seed << 16) + 2 + uint64_t(i), "other", 2 + i, 1};
    player.init(other);
    playAtRandom(player, other, order.seed + uint64_t(i), 20);
    player.finalize(other);
  }
  playAtRandom(player, none, 3, 100);
  for (auto& thread : threads) {
    thread.join();
  }
  // The plugin must also survive events of a finalised communicator.
  player.finalize(c);
  playAtRandom(player, c, 5, 100);
  player.finalize(c);
}

int playOrders(int version, uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    survives({seed, version, 3, 1000, 5});
    std::printf("%llu\n", (unsigned long long)seed);
    std::fflush(stdout);
  }
  return 0;
}

void playCollective(Player& player, Communicator& c) {
  void* call = player.call(c, "AllReduce", "ncclFloat32", 1 << 20, false);
  player.stop(call);
  void* operation = player.launch(c, kReduceGradients, call);
  player.stop(operation);
  void* channels[4];
  for (uint8_t i = 0; i < 4; ++i) {
    channels[i] = player.beginChannel(c, operation, i, gpuNow());
  }
  for (void* channel : channels) {
    player.endChannel(channel, gpuNow());
  }
}

int playUntilKilled(int version, const char* path) {
  const int file = open(path, O_RDWR);
  auto* ended = static_cast<std::atomic<uint64_t>*>(
      mmap(nullptr, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  Player player(version, tableOf(version));
  Communicator c{nullptr, 0xabc, "dp0", 2, 0};
  player.init(c);
  while (true) {
    playCollective(player, c);
    if (ended->fetch_add(1) % 64 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

size_t residentBytes() {
  size_t total = 0;
  size_t resident = 0;
  size_t shared = 0;
  std::ifstream("/proc/self/statm") >> total >> resident >> shared;
  return (resident - shared) * size_t(sysconf(_SC_PAGESIZE));
}

int playMany(const char* path, uint64_t events) {
  void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* table = plugin ? dlsym(plugin, "ncclProfiler_v6") : nullptr;
  if (table == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  Player player(6, table);
  Communicator c{nullptr, 0xabc, "dp0", 2, 0};
  player.init(c);
  constexpr uint64_t kOfCollective = 6;
  const uint64_t tenth = events / 10;
  for (uint64_t played = 0; played < events; played += kOfCollective) {
    playCollective(player, c);
    const uint64_t done = played + kOfCollective;
    if (done / tenth != played / tenth) {
      std::printf("%llu %zu\n", (unsigned long long)done, residentBytes());
      std::fflush(stdout);
    }
    // Without these pauses, records would be dropped.
    if (played / kOfCollective % 500 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  player.finalize(c);
  return 0;
}

void takesOneRankOfEach() {
  Player player(6, tableOf(6));
  Communicator first{nullptr, 0x77, "", 2, 0};
  Communicator second{nullptr, 0x77, "", 2, 1};
  player.init(first);
  player.init(second);
  CHECK(first.context != nullptr && second.context == nullptr);
  player.finalize(second);
  player.finalize(first);
}

// NCCL has one mask of events for all communicators.
void keepsTheMask() {
  Player player(6, tableOf(6));
  Communicator c{nullptr, 0x44, "", 2, 0};
  player.init(c);
  std::atomic<bool> opening{true};
  int missing = 0;
  std::thread reader([&] {
    while (opening) {
      missing += player.tells(nccl::kColl) ? 0 : 1;
    }
  });
  const uint64_t others = check::kThreadSanitized ? 200 : 3000;
  for (uint64_t i = 0; i < others; ++i) {
    Communicator other{nullptr, 0x4000 + i, "", 2 + int(i), 0};
    player.init(other);
    player.finalize(other);
  }
  opening = false;
  reader.join();
  CHECK_EQ(missing, 0);
  player.finalize(c);
}

void childIsSilent() {
  if (check::isEmulated() || check::kThreadSanitized) {
    return;
  }
  Player player(6, tableOf(6));
  Communicator c{nullptr, 0x88, "", 2, 0};
  player.init(c);
  const pid_t child = fork();
  if (child == 0) {
    void* handle = player.launch(c, kReduceGradients, nullptr);
    player.finalize(c);
    Communicator own{nullptr, 0x99, "", 2, 0};
    player.init(own);
    _exit(
        handle == nullptr && own.context == nullptr && player.mask == 0 ? 0
                                                                        : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(player.launch(c, kReduceGradients, nullptr) != nullptr);
  player.finalize(c);
}

// NCCL never ends the events of an aborted communicator.
void survivesAborts() {
  Player player(6, tableOf(6));
  // The plugin reuses a communicator after 256 others.
  for (uint64_t i = 0; i < 300; ++i) {
    Communicator aborted{nullptr, 0x5000 + i, "", 2, 0};
    player.init(aborted);
    void* call = player.call(
        aborted, "AllReduce", "ncclFloat32", 100, /*captured=*/i % 2 == 0);
    void* operation = player.launch(aborted, kReduceGradients, call);
    player.beginChannel(aborted, operation, 0, gpuNow());
    for (int peer = 0; peer < 100; ++peer) {
      void* transfer = player.beginProxyOp(
          aborted.context, operation, {getpid(), 0, peer, 8, 1, 1});
      player.state(
          player.beginStep(aborted.context, transfer, 0), nccl::kSendWait, 1);
    }
    player.finalize(aborted);
    player.endChannel(
        player.beginChannel(aborted, operation, 1, gpuNow()), gpuNow());
  }
  Communicator next{nullptr, 0x5000, "", 2, 0};
  player.init(next);
  void* operation = player.launch(
      next, {"ReduceScatter", "ncclBfloat16", 1000, 0, 1}, nullptr);
  void* channel = player.beginChannel(next, operation, 0, gpuNow());
  CHECK(channel != nullptr);
  player.endChannel(channel, gpuNow());
  CHECK(player.beginChannel(next, operation, 0, gpuNow()) == nullptr);
  player.finalize(next);
}

void takesNoLocks() {
  for (const int version : {3, 4, 5, 6, 7}) {
    Player player(version, tableOf(version));
    Communicator c{nullptr, 0x3300u + uint64_t(version), "", 2, 0};
    player.init(c);
    // The first round is not counted, because the thread gets its ring in that
    // round.
    for (const bool counts : {false, true}) {
      t_counts = counts;
      for (int i = 0; i < 100; ++i) {
        void* captured = player.call(c, "AllReduce", "ncclInt8", 100, true);
        player.launch(c, kReduceGradients, captured);
        player.launch(c, {"Send", "ncclInt8", 100, 1, 2}, nullptr);
        playCollective(player, c);
      }
      t_counts = false;
    }
    player.finalize(c);
  }
  CHECK_EQ(t_allocations, 0);
  CHECK_EQ(t_locks, 0);
}

void boundsWhatIsPending() {
  Player player(6, tableOf(6));
  Communicator c{nullptr, 0x66, "", 2, 0};
  player.init(c);
  void* lost = player.launch(c, kReduceGradients, nullptr);
  for (int i = 0; i < 40'000; ++i) {
    player.launch(c, kReduceGradients, nullptr);
  }
  CHECK(player.beginChannel(c, lost, 0, gpuNow()) == nullptr);
  player.finalize(c);
}

} // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  const auto number = [&](int place) {
    return std::strtoull(arguments[place], nullptr, 10);
  };
  if (mode == "orders") {
    return playOrders(int(number(2)), number(3), number(4));
  }
  if (mode == "until-killed") {
    return playUntilKilled(int(number(2)), arguments[3]);
  }
  if (mode == "many") {
    return playMany(arguments[2], number(3));
  }
  const trace_file::Directory directory;
  setenv("COMMPROF_OUT", (directory / "run").c_str(), 1);
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "4", 1);
  setenv("COMMPROF_NCCL", "network", 1);
  for (const int version : {3, 4, 5, 6, 7}) {
    const int events = check::kSanitized ? 3000 : 20'000;
    survives({uint64_t(version), version, 4, events, 300});
  }
  takesOneRankOfEach();
  takesNoLocks();
  keepsTheMask();
  boundsWhatIsPending();
  survivesAborts();
  childIsSilent();
  CHECK_EQ(directory.count("run"), 1u);
  Recorder::instance().stop();
  return check::report();
}
