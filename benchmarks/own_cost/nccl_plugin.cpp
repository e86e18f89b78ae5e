// Times the events of NCCL's calling thread with a profiler plugin, and with
// one that does nothing, in turns: nccl_plugin PLUGIN ROUNDS. Prints for each
// round the nanoseconds of CPU time per collective, of the empty plugin and of
// PLUGIN.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
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
  *handle = nullptr;
  return 0;
}
nccl::Result emptyStop(void*) {
  return 0;
}
nccl::Result emptyState(void*, int, nccl::StateArgs*) {
  return 0;
}
nccl::TableV5 g_empty =
    {"empty", emptyInit, emptyStart, emptyStop, emptyState, emptyStop};

class Side {
 public:
  explicit Side(void* table) : player_(6, table) {
    player_.init(communicator_);
  }
  // One batch after the other: the kernels are told in between, in a thread of
  // their own, and are not timed.
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
  void* library =
      count == 3 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* table = library ? dlsym(library, "ncclProfiler_v6") : nullptr;
  if (table == nullptr) {
    std::fprintf(stderr, "usage: nccl_plugin PLUGIN ROUNDS\n");
    return 2;
  }
  Side empty(&g_empty);
  Side plugin(table);
  empty.nsPerCollective();
  plugin.nsPerCollective();
  for (int i = 0; i < std::atoi(arguments[2]); ++i) {
    const double without = empty.nsPerCollective();
    std::printf("%.2f %.2f\n", without, plugin.nsPerCollective());
  }
  return 0;
}
