// All modes but the first play NCCL against the plugin's tables. print() writes
// one line for each operation that was played.
//
// test_nccl_plugin
//     checks the conversion of clocks
// test_nccl_plugin play VERSION [kill]
//     plays a job; with `kill`, the process kills itself before the end
// test_nccl_plugin joined VERSION
//     makes all calls but the last inside of recorded operations
// test_nccl_plugin loaded PLUGIN VERSION [all]
//     plays a job against the loaded plugin. With `all`, plays events of every
//     type for two communicators at a time, and for a third communicator after
//     the plugin was loaded again
// test_nccl_plugin through LIBNCCL PLUGIN ADDRESS VERSION [all]
//     plays against the table that NCCL's own loader makes of the plugin.
//     ADDRESS is the address of getNcclProfiler_v<N> in the library. VERSION is
//     the newest version that the library knows.
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "check.h"
#include "core/current_op.h"
#include "core/recorder.h"
#include "nccl_player.h"
#include "nccl_plugin/gpu_clock.h"
#include "nccl_plugin/names.h"
#include "nccl_plugin/run.h"

using namespace commprof;
using nccl_player::Communicator;
using nccl_player::gpuNow;
using nccl_player::kGpuLateNs;
using nccl_player::kReduceGradients;
using nccl_player::Player;
using nccl_player::tableOf;

namespace {

struct Played {
  std::string group;
  Player::Operation operation;
  uint32_t seq;
  uint64_t op_id = 0;
  uint32_t replay = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t begin_seen_ns = 0;
  uint64_t end_seen_ns = 0;
};

int reporting(const Player::Operation& operation) {
  return operation.channels - operation.without_data;
}

// The last `lost` channels of each kernel are never reported.
void runKernels(
    Player& player,
    Communicator& c,
    std::vector<std::pair<void*, Played*>> launched,
    uint8_t lost = 0) {
  std::vector<void*> channels;
  for (auto& [handle, played] : launched) {
    for (uint8_t i = 0; i < reporting(played->operation) - lost; ++i) {
      const uint64_t gpu_ns = gpuNow();
      channels.push_back(player.beginChannel(c, handle, i, gpu_ns));
      if (i == 0) {
        played->begin_ns = gpu_ns - kGpuLateNs;
        played->begin_seen_ns = nowNs();
      }
    }
  }
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  size_t next = 0;
  for (auto& [handle, played] : launched) {
    for (uint8_t i = 0; i < reporting(played->operation) - lost; ++i) {
      const uint64_t gpu_ns = gpuNow();
      player.endChannel(channels[next++], gpu_ns);
      played->end_ns = lost == 0 ? gpu_ns - kGpuLateNs : 0;
      played->end_seen_ns = nowNs();
    }
  }
}

class Job {
 public:
  Job(Player& player, Communicator& c) : player_(player), c_(c) {}

  void plain(const Player::Operation& operation, uint8_t lost = 0) {
    const InsideOp inside(issued(operation));
    inGroup([&](void* group) {
      void* call = begun(operation, false, group);
      player_.stop(call);
      launchAll("", {operation}, {call}, {t_current_op}, group, 0, lost);
    });
  }

  void grouped(const std::vector<Player::Operation>& operations) {
    inGroup([&](void* group) {
      std::vector<void*> calls;
      std::vector<uint64_t> ids;
      for (const auto& operation : operations) {
        const InsideOp inside(issued(operation));
        ids.push_back(t_current_op);
        calls.push_back(begun(operation, false, group));
        player_.stop(calls.back());
      }
      launchAll("", operations, calls, ids, group);
    });
  }

  void copied(const Player::Operation& operation) {
    inGroup([&](void* group) {
      void* call = begun(operation, false, group);
      player_.stop(call);
      void* copied = player_.begin(nccl::kCeColl, c_.context, call);
      for (const uint64_t type : {nccl::kCeSync, nccl::kCeBatch}) {
        player_.stop(player_.begin(type, c_.context, copied));
      }
      player_.stop(copied);
    });
  }

  void capture(const std::vector<Player::Operation>& operations) {
    captured_ = operations;
    for (const auto& operation : operations) {
      const InsideOp inside(issued(operation));
      captured_ids_.push_back(t_current_op);
      captured_calls_.push_back(begun(operation, true, nullptr));
      player_.stop(captured_calls_.back());
    }
  }
  // NCCL reports the replay of a CUDA graph from a thread of CUDA.
  void replay() {
    replays_ += player_.hasCalls() ? 1 : 0;
    std::thread([this] {
      const char* group = player_.hasCalls() ? " replays" : "";
      launchAll(
          group, captured_, captured_calls_, captured_ids_, nullptr, replays_);
    }).join();
  }

  void print() const {
    for (const Played& p : played_) {
      std::printf(
          "%016llx%s\t%s\t%u\t%d\t%zu\t%s\t%llu\t%llu\t%llu\t%llu\t%llu\t%u\t%"
          "u\n",
          (unsigned long long)c_.id,
          p.group.c_str(),
          p.operation.func,
          p.seq,
          p.operation.root_or_peer,
          p.operation.count,
          p.operation.datatype,
          (unsigned long long)p.begin_ns,
          (unsigned long long)p.end_ns,
          (unsigned long long)p.begin_seen_ns,
          (unsigned long long)p.end_seen_ns,
          (unsigned long long)p.op_id,
          p.replay,
          p.operation.channels);
    }
  }
  bool inside_operations = false;

 private:
  uint64_t issued(const Player::Operation& operation) {
    if (!inside_operations) {
      return 0;
    }
    Record issue;
    issue.timestamp_ns = nowNs();
    issue.kind = Kind::kIssue;
    issue.op_id = Recorder::instance().nextOpId();
    issue.op = nccl::opOf(operation.func);
    issue.flags = kDeviceAsync;
    Recorder::instance().push(issue);
    return issue.op_id;
  }

  void* begun(const Player::Operation& o, bool captured, void* group) {
    return player_.call(c_, o.func, o.datatype, o.count, captured, group);
  }

  template <class Calls>
  void inGroup(Calls calls) {
    constexpr int kGroupStartApiStop = 23;
    constexpr int kGroupEndApiStart = 24;
    void* group = player_.begin(nccl::kGroupApi, c_.context, nullptr);
    player_.state(group, kGroupStartApiStop);
    calls(group);
    player_.state(group, kGroupEndApiStart);
    player_.stop(group);
  }

  Played& add(const std::string& group, const Player::Operation& operation) {
    uint32_t seq = 0;
    const bool message = Player::isMessage(operation.func);
    for (const Played& before : played_) {
      const bool same = message
          ? std::strcmp(before.operation.func, operation.func) == 0 &&
              before.operation.root_or_peer == operation.root_or_peer
          : !Player::isMessage(before.operation.func);
      seq += same && before.group == group ? 1 : 0;
    }
    played_.push_back({group, operation, seq});
    return played_.back();
  }

  void launchAll(
      const std::string& group,
      const std::vector<Player::Operation>& operations,
      const std::vector<void*>& calls,
      const std::vector<uint64_t>& ids,
      void* calls_group = nullptr,
      uint32_t replay = 0,
      uint8_t lost = 0) {
    std::vector<std::pair<void*, Played*>> launched;
    void* launch = player_.begin(nccl::kKernelLaunch, c_.context, calls_group);
    void* kernels = player_.begin(nccl::kGroup, c_.context, nullptr);
    for (size_t i = 0; i < operations.size(); ++i) {
      Played& played = add(group, operations[i]);
      // If NCCL reports no events of calls, operations that were launched
      // together cannot be joined with capture's operations.
      played.op_id = player_.hasCalls() || operations.size() == 1 ? ids[i] : 0;
      played.replay = replay;
      void* handle =
          player_.launch(c_, operations[i], calls[i], played.seq, kernels);
      launched.emplace_back(handle, &played);
    }
    for (const auto& [handle, played] : launched) {
      player_.stop(handle);
    }
    player_.stop(kernels);
    player_.stop(launch);
    onProxy([&] {
      send(launched.front().first);
      runKernels(player_, c_, launched, lost);
    });
  }

  void send(void* operation) {
    constexpr int kProxyCtrlActive = 14;
    void* control = player_.begin(nccl::kProxyCtrl, c_.context, nullptr);
    player_.state(control, kProxyCtrlActive);
    player_.stop(control);
    void* const elsewhere = reinterpret_cast<void*>(0x1234560);
    for (const bool foreign : {false, true}) {
      void* context = foreign ? elsewhere : c_.context;
      void* transfer = player_.beginProxyOp(
          context,
          foreign ? elsewhere : operation,
          {foreign ? 1 : getpid(), 0, 1, 2, 4096, 1});
      for (int i = 0; i < 2; ++i) {
        void* step = player_.beginStep(context, transfer, i);
        player_.state(step, nccl::kSendGpuWait);
        player_.stop(player_.begin(nccl::kNetPlugin, context, step));
        player_.state(step, nccl::kSendWait, 4096);
        player_.stop(step);
      }
      player_.stop(transfer);
    }
  }

  template <class Body>
  void onProxy(Body body) {
    std::thread(body).join();
  }

  Player& player_;
  Communicator& c_;
  std::deque<Played> played_;
  std::vector<Player::Operation> captured_;
  std::vector<void*> captured_calls_;
  std::vector<uint64_t> captured_ids_;
  uint32_t replays_ = 0;
};

const Player::Operation kGather{"AllGather", "ncclInt8", 4096, 0, 2};
const Player::Operation kScatter{"ReduceScatter", "ncclBfloat16", 1000, 0, 1};
const Player::Operation kSpread{"Broadcast", "ncclInt8", 800, 1, 1};
const Player::Operation kSum{"Reduce", "ncclFloat64", 100, 1, 3};

void play(Player& player, bool killed = false, bool joined = false) {
  const char* rank = std::getenv("RANK");
  if (joined) {
    nccl::openRun({0, 2});
    nccl::join();
  }
  Communicator world{nullptr, 0xabc, "dp0", 2, rank ? std::atoi(rank) : 0};
  const int peer = 1 - world.rank;
  player.init(world);
  Job job(player, world);
  job.inside_operations = joined;
  for (const auto& operation :
       {kReduceGradients, kGather, kScatter, kSpread, kSum, kReduceGradients}) {
    job.plain(operation);
  }
  job.grouped({kReduceGradients, kReduceGradients, kGather});
  // On four channels, a message of three pages leaves one channel without data.
  job.grouped(
      {{"Send", "ncclFloat32", 3072, peer, 4, 1},
       {"Recv", "ncclFloat32", 3072, peer, 3}});
  job.plain({"Send", "ncclFloat16", 8, peer, 1});
  job.capture({kReduceGradients, kScatter, kReduceGradients});
  for (int i = 0; i < 10; ++i) {
    job.replay();
  }
  job.plain(kReduceGradients, /*lost=*/1);
  job.inside_operations = false;
  job.plain(kReduceGradients);
  job.print();
  if (killed) {
    std::fflush(stdout);
    raise(SIGKILL);
  }
  player.finalize(world);
}

void playAll(Player& player, Communicator& c) {
  Job job(player, c);
  job.plain(kReduceGradients);
  job.grouped({kReduceGradients, kGather});
  job.plain({"Send", "ncclFloat16", 8, 1, 1});
  job.copied(kGather);
  job.capture({kReduceGradients, kScatter});
  for (int i = 0; i < 3; ++i) {
    job.replay();
  }
}

void playAllOfTwo(Player& player) {
  Communicator first{nullptr, 0xabc, "dp0", 2, 0};
  Communicator second{nullptr, 0xdef, "dp1", 2, 0};
  player.init(first);
  player.init(second);
  std::thread other([&] { playAll(player, second); });
  playAll(player, first);
  other.join();
  player.finalize(second);
  player.finalize(first);
}

int playLoaded(const char* path, int version, bool all) {
  for (int load = 0; load < (all ? 2 : 1); ++load) {
    void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const std::string name = "ncclProfiler_v" + std::to_string(version);
    void* table = plugin ? dlsym(plugin, name.c_str()) : nullptr;
    if (table == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    Player player(version, table);
    if (load > 0) {
      Communicator third{nullptr, 0x123, "dp2", 2, 0};
      player.init(third);
      playAll(player, third);
      player.finalize(third);
    } else if (all) {
      playAllOfTwo(player);
    } else {
      play(player);
    }
    dlclose(plugin);
    if (!all) {
      // The plugin is linked with -z nodelete, so its thread runs on after
      // dlclose().
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  }
  return 0;
}

int playThrough(char** arguments, bool all) {
  void* library = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
  void* plugin =
      library ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (plugin == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  link_map* where = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &where);
  const auto get = reinterpret_cast<void* (*)(void*)>(
      where->l_addr + std::strtoull(arguments[2], nullptr, 16));
  void* table = get(plugin);
  if (table == nullptr) {
    std::fprintf(stderr, "NCCL does not take the plugin\n");
    return 1;
  }
  Player player(std::atoi(arguments[3]), table);
  if (all) {
    playAllOfTwo(player);
  } else {
    play(player);
  }
  return 0;
}

// The GPU's clock drifts by 20 ppm. The host sees each reading of the clock up
// to 50 us late.
void convertsGpuTimes() {
  std::mt19937_64 random(1);
  nccl::GpuClock clock;
  const auto host = [](uint64_t true_ns) { return true_ns; };
  const auto gpu = [](uint64_t true_ns) {
    return uint64_t(double(true_ns) * 1.00002) + kGpuLateNs;
  };
  // The first reading is seen 20 ms late, and the next reading corrects this.
  clock.add(host(920'000'000), gpu(900'000'000));
  CHECK(clock.add(host(930'500'000), gpu(930'000'000)));
  CHECK(clock.toHost(gpu(900'000'000)) - 900'000'000 < 1'000'000);
  int64_t worst_ns = 0;
  for (uint64_t at_ns = 1'000'000'000; at_ns < 31'000'000'000;
       at_ns += 1'000'000) {
    const uint64_t seen_ns = at_ns + 500 + random() % 50'000;
    clock.add(host(seen_ns), gpu(at_ns));
    const int64_t late_ns = int64_t(clock.toHost(gpu(at_ns)) - host(at_ns));
    if (at_ns > 6'000'000'000) {
      worst_ns = std::max(worst_ns, std::abs(late_ns));
    }
    CHECK(late_ns <= 50'500);
  }
  CHECK(worst_ns < 3000);
  CHECK(!clock.add(31'000'000'000, gpu(31'010'000'000)));
  // The GPU's clock has been set forward by an hour.
  for (int i = 0; i < nccl::GpuClock::kStrangeInARow; ++i) {
    const uint64_t at_ns = 31'000'000'000 + uint64_t(i) * 1'000'000;
    clock.add(at_ns + 1000, gpu(at_ns) + 3'600'000'000'000);
  }
  const uint64_t at_ns = 31'100'000'000;
  const uint64_t gpu_ns = gpu(at_ns) + 3'600'000'000'000;
  clock.add(at_ns + 1000, gpu_ns);
  CHECK(std::abs(int64_t(clock.toHost(gpu_ns) - at_ns)) < 10'000);
  // For half a second, a thread of NCCL sees each reading 100 ms late.
  for (uint64_t late_ns = 32'000'000'000; late_ns < 32'500'000'000;
       late_ns += 1'000'000) {
    clock.add(late_ns + 100'000'000, gpu(late_ns) + 3'600'000'000'000);
  }
  CHECK(std::abs(int64_t(clock.toHost(gpu_ns) - at_ns)) < 5'000'000);
  // The GPU's clock has been set back by an hour.
  for (uint64_t back_ns = 33'000'000'000; back_ns < 34'500'000'000;
       back_ns += 1'000'000) {
    clock.add(back_ns + 1000, gpu(back_ns));
  }
  const uint64_t later_ns = 34'600'000'000;
  CHECK(std::abs(int64_t(clock.toHost(gpu(later_ns)) - later_ns)) < 50'000);
}

} // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "play" || mode == "joined") {
    const int version = std::atoi(arguments[2]);
    Player player(version, tableOf(version));
    play(player, /*killed=*/count > 3, /*joined=*/mode == "joined");
    return 0;
  }
  if (mode == "loaded") {
    return playLoaded(arguments[2], std::atoi(arguments[3]), count > 4);
  }
  if (mode == "through") {
    return playThrough(arguments + 2, count > 6);
  }
  convertsGpuTimes();
  return check::report();
}
