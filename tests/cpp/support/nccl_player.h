// Player calls a profiler plugin in NCCL's order, with the layout of one
// version of the interface. Player skips events that the plugin's mask lacks.
#pragma once

#include <unistd.h>

#include <cstring>
#include <string>

#include "base/clock.h"
#include "nccl_plugin/interface.h"

extern "C" commprof::nccl::TableV3 ncclProfiler_v3;
extern "C" commprof::nccl::TableV4 ncclProfiler_v4;
extern "C" commprof::nccl::TableV5 ncclProfiler_v5;
extern "C" commprof::nccl::TableV5 ncclProfiler_v6;
extern "C" commprof::nccl::TableV5 ncclProfiler_v7;

namespace nccl_player {

using namespace commprof::nccl;

// NCCL's adapters also copy fields that the plugin does not use, so a
// descriptor needs at least as many bytes as NCCL's.
template <class Event>
struct Wide {
  Event event;
  char more[256];
  Wide() {
    std::memset(static_cast<void*>(this), 0, sizeof(*this));
  }
};

struct Communicator {
  void* context = nullptr;
  uint64_t id;
  std::string name;
  int ranks;
  int rank;
};

inline void logNothing(int, unsigned long, const char*, int, const char*, ...) {
}

class Player {
 public:
  Player(int version, void* table) : version_(version), table_(table) {}

  bool hasCalls() const {
    return version_ >= 5;
  }
  bool hasGpuTimes() const {
    return version_ >= 4;
  }
  int mask = 0;

  Result init(Communicator& c) {
    const char* name = c.name.empty() ? nullptr : c.name.c_str();
    if (version_ == 3) {
      return v3()->init(&c.context, &mask);
    }
    if (version_ == 4) {
      return v4()->init(
          &c.context, &mask, name, c.id, 1, c.ranks, c.rank, logNothing);
    }
    return v5()->init(
        &c.context, c.id, &mask, name, 1, c.ranks, c.rank, logNothing);
  }
  void finalize(Communicator& c) {
    if (c.context != nullptr) {
      v5()->finalize(c.context);
    }
  }

  bool tells(uint64_t type) const {
    return isTold(type, __atomic_load_n(&mask, __ATOMIC_RELAXED), version_);
  }

  void* begin(uint64_t type, void* context, void* parent) {
    return start(type, context, parent, [](auto&) {});
  }
  void* call(
      Communicator& c,
      const char* func,
      const char* datatype,
      size_t count,
      bool captured,
      void* group = nullptr) {
    const bool message = isMessage(func);
    return start(
        message ? kP2pApi : kCollApi, c.context, group, [&](auto& event) {
          if (message) {
            event.p2p_api = {func, count, datatype, nullptr, captured};
          } else {
            event.coll_api = {func, count, datatype, 0, nullptr, captured};
          }
        });
  }
  void stop(void* handle) {
    if (handle != nullptr) {
      v5()->stop_event(handle);
    }
  }

  struct Operation {
    const char* func;
    const char* datatype;
    size_t count;
    int root_or_peer;
    uint8_t channels;
    uint8_t without_data = 0; // The last `without_data` channels are silent.
  };
  void* launch(
      Communicator& c,
      const Operation& o,
      void* call,
      uint64_t seq = 0,
      void* group = nullptr) {
    const CeCollFields common{
        seq, o.func, nullptr, nullptr, o.count, o.root_or_peer, o.datatype};
    const CollFields coll{common, o.channels, 8, "RING", "SIMPLE"};
    const P2pFields p2p{
        o.func, nullptr, o.datatype, o.count, o.root_or_peer, o.channels};
    const bool message = isMessage(o.func);
    const auto describe = [&](auto& event) {
      event.rank = c.rank;
      const auto fill = [&](auto& operation, const auto& fields) {
        operation.fields = fields;
        if constexpr (requires { operation.communicator_id; }) {
          operation.communicator_name = c.name.c_str();
          operation.communicator_id = c.id;
        } else if constexpr (requires { operation.group; }) {
          operation.group = group;
        }
      };
      message ? fill(event.p2p, p2p) : fill(event.coll, coll);
    };
    return start(
        message ? kP2p : kColl, c.context, hasCalls() ? call : group, describe);
  }

  void* beginChannel(
      Communicator& c,
      void* operation,
      uint8_t channel,
      uint64_t gpu_ns) {
    return start(kKernelCh, c.context, operation, [&](auto& event) {
      event.kernel_ch = {channel, hasGpuTimes() ? gpu_ns : 0};
    });
  }
  void endChannel(void* handle, uint64_t gpu_ns) {
    if (hasGpuTimes()) {
      state(handle, kKernelChStop, gpu_ns);
    }
    stop(handle);
  }

  void* beginProxyOp(
      void* context,
      void* operation,
      const ProxyOpFields& fields) {
    return start(kProxyOp, context, operation, [&](auto& event) {
      event.proxy_op = fields;
    });
  }
  void* beginStep(void* context, void* proxy_op, int step) {
    return start(kProxyStep, context, proxy_op, [&](auto& event) {
      event.proxy_step = {step};
    });
  }
  // `value` is a time of the GPU in ns for kKernelChStop, and else a number of
  // bytes.
  void state(void* handle, int state, uint64_t value = 0) {
    StateArgs args{value};
    if (handle != nullptr) {
      v5()->record_event_state(handle, state, &args);
    }
  }

  static bool isMessage(const char* func) {
    return std::strcmp(func, "Send") == 0 || std::strcmp(func, "Recv") == 0;
  }

 private:
  TableV3* v3() {
    return static_cast<TableV3*>(table_);
  }
  TableV4* v4() {
    return static_cast<TableV4*>(table_);
  }
  // Only init() differs between the tables, so v5() also serves for the other
  // functions of older versions.
  TableV5* v5() {
    return static_cast<TableV5*>(table_);
  }

  template <class Describe>
  void* start(uint64_t type, void* context, void* parent, Describe describe) {
    if (!tells(type)) {
      return nullptr;
    }
    const auto play = [&](auto* table, auto wide) {
      wide.event.type = decltype(wide.event.type)(type);
      wide.event.parent = parent;
      describe(wide.event);
      void* handle = nullptr;
      table->start_event(context, &handle, &wide.event);
      return handle;
    };
    return version_ == 3 ? play(v3(), Wide<DescriptorV3>())
        : version_ == 4  ? play(v4(), Wide<DescriptorV4>())
                         : play(v5(), Wide<DescriptorV5>());
  }

  int version_;
  void* table_;
};

inline void* tableOf(int version) {
  return version == 3 ? static_cast<void*>(&ncclProfiler_v3)
      : version == 4  ? static_cast<void*>(&ncclProfiler_v4)
      : version == 5  ? &ncclProfiler_v5
      : version == 6  ? &ncclProfiler_v6
                      : &ncclProfiler_v7;
}

// The simulated GPU's clock is one day ahead of the host's clock.
inline constexpr uint64_t kGpuLateNs = 86'400'000'000'000;
inline uint64_t gpuNow() {
  return commprof::nowNs() + kGpuLateNs;
}

inline const Player::Operation kReduceGradients{
    "AllReduce",
    "ncclFloat32",
    6'553'600,
    0,
    4};

} // namespace nccl_player
