// Measures the CPU time that a profiler plugin adds to NCCL's calling thread.
// Usage: nccl_plugin PLUGIN COPY ROUNDS, where COPY is a copy of PLUGIN. Prints
// a line per round: the ns per collective with an empty plugin, with PLUGIN,
// and with COPY, which passes all events on to the empty plugin.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "nccl_player.h"

using namespace commprof;
using nccl_player::Communicator;
using nccl_player::Player;

namespace {

constexpr int kBatch = 400;
constexpr int kBatches = 25;
const Player::Operation kReduce{"AllReduce", "ncclFloat32", 1 << 20, 0, 4};

nccl::Result emptyInit(
    void** context,
    uint64_t,
    int* mask,
    const char*,
    int,
    int,
    int,
    nccl::Logger) {
  *context = nullptr;
  *mask = int(nccl::kColl | nccl::kKernelCh | nccl::kCollApi);
  return 0;
}
nccl::Result emptyStart(void*, void** handle, nccl::DescriptorV5*) {
  static int64_t any;
  *handle = &any;
  return 0;
}
nccl::Result emptyStop(void*) {
  return 0;
}
nccl::Result emptyState(void*, int, nccl::StateArgs*) {
  return 0;
}

} // namespace

// The empty plugin. COPY finds it in the program itself, as a user's plugin.
extern "C" __attribute__((visibility("default"))) nccl::TableV5 ncclProfiler_v6;
nccl::TableV5 ncclProfiler_v6 =
    {"empty", emptyInit, emptyStart, emptyStop, emptyState, emptyStop};

namespace {

void* tableIn(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, "ncclProfiler_v6") : nullptr;
}

class Side {
 public:
  // `users`: value of COMMPROF_NCCL_PLUGIN, which names the user's plugin.
  Side(void* table, const std::string& out, const char* users)
      : player_(6, table) {
    setenv("COMMPROF_OUT", out.c_str(), 1);
    setenv("COMMPROF_NCCL_PLUGIN", users, 1);
    player_.init(communicator_);
  }
  // Plays the batches one after another. The kernels' events are not timed:
  // another thread plays them between batches.
  double nsPerCollective() {
    uint64_t spent_ns = 0;
    for (int i = 0; i < kBatches; ++i) {
      const uint64_t begin_ns = threadCpuNs();
      for (void*& operation : operations_) {
        void* call = player_.call(
            communicator_, "AllReduce", "ncclFloat32", 1 << 20, false);
        player_.stop(call);
        operation = player_.launch(communicator_, kReduce, call);
        player_.stop(operation);
      }
      spent_ns += threadCpuNs() - begin_ns;
      std::thread([this] { runKernels(); }).join();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return double(spent_ns) / (kBatch * kBatches);
  }

 private:
  void runKernels() {
    for (void* operation : operations_) {
      for (uint8_t channel = 0; channel < kReduce.channels; ++channel) {
        void* handle =
            player_.beginChannel(communicator_, operation, channel, nowNs());
        player_.endChannel(handle, nowNs());
      }
    }
  }

  Communicator communicator_{nullptr, 0xabc, "dp0", 2, 0};
  Player player_;
  std::vector<void*> operations_ = std::vector<void*>(kBatch);
};

} // namespace

int main(int count, char** arguments) {
  void* table = count == 4 ? tableIn(arguments[1]) : nullptr;
  void* copy = count == 4 ? tableIn(arguments[2]) : nullptr;
  const char* out = std::getenv("COMMPROF_OUT");
  if (table == nullptr || copy == nullptr || table == copy || !out) {
    std::fprintf(stderr, "usage: nccl_plugin PLUGIN COPY ROUNDS\n");
    return 2;
  }
  const std::string traces = out;
  Side empty(&ncclProfiler_v6, traces, "");
  Side plugin(table, traces + "/alone", "");
  Side both(copy, traces + "/both", "STATIC_PLUGIN");
  Side* const sides[] = {&empty, &plugin, &both};
  for (Side* side : sides) {
    side->nsPerCollective();
  }
  for (int i = 0; i < std::atoi(arguments[3]); ++i) {
    double ns[3] = {};
    for (int turn = 0; turn < 3; ++turn) {
      const int side = (i + turn) % 3;
      ns[side] = sides[side]->nsPerCollective();
    }
    std::printf("%.2f %.2f %.2f\n", ns[0], ns[1], ns[2]);
  }
  return 0;
}
