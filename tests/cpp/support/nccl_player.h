// Plays the part of NCCL: calls a profiler plugin's table in NCCL's order, in
// the layout of one version of the interface.
#pragma once

#include <cstring>
#include <string>

#include "nccl_plugin/interface.h"

namespace nccl_player {

using namespace commprof::nccl;

// As wide as NCCL's, whose adapters copy also what the plugin does not use.
template <class Descriptor>
struct Wide {
  Descriptor event;
  char more[256];
  Wide() {
    std::memset(static_cast<void*>(this), 0, sizeof(*this));
  }
  void setPointer(size_t offset, void* pointer) {
    std::memcpy(reinterpret_cast<char*>(this) + offset, &pointer, 8);
  }
};
// Places of the group of kernels in a Coll and a P2p since version 5.
constexpr size_t kCollGroup = 104;
constexpr size_t kP2pGroup = 64;

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
  // `table` has the layout of `version`.
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
    version_ == 3       ? v3()->finalize(c.context)
        : version_ == 4 ? v4()->finalize(c.context)
                        : v5()->finalize(c.context);
  }

  // A call of the API; null before version 5.
  void* call(
      Communicator& c,
      const char* func,
      const char* datatype,
      size_t count,
      bool captured) {
    if (!hasCalls()) {
      return nullptr;
    }
    Wide<DescriptorV5> wide;
    if (isMessage(func)) {
      wide.event.type = kP2pApi;
      wide.event.p2p_api = {func, count, datatype, nullptr, captured};
    } else {
      wide.event.type = kCollApi;
      wide.event.coll_api = {func, count, datatype, 0, nullptr, captured};
    }
    return started(v5(), c, wide);
  }
  // Whatever began, or nothing.
  void stop(void* handle) {
    if (handle != nullptr) {
      version_ == 3       ? v3()->stop_event(handle)
          : version_ == 4 ? v4()->stop_event(handle)
                          : v5()->stop_event(handle);
    }
  }

  struct Operation {
    const char* func;
    const char* datatype;
    size_t count;
    int root_or_peer;
    uint8_t channels;
    uint8_t without_data = 0; // channels that report nothing, the last ones
  };
  void* launch(
      Communicator& c,
      const Operation& operation,
      void* call,
      uint64_t seq = 0) {
    if (version_ == 3) {
      return launchV3(c, operation, seq);
    }
    if (version_ == 4) {
      Wide<DescriptorV4> wide;
      wide.event.rank = c.rank;
      describe(wide.event, operation, seq);
      return started(v4(), c, wide);
    }
    Wide<DescriptorV5> wide;
    wide.event.rank = c.rank;
    wide.event.parent = call;
    describe(wide.event, operation, seq);
    wide.setPointer(isMessage(operation.func) ? kP2pGroup : kCollGroup, this);
    return started(v5(), c, wide);
  }

  void* beginChannel(
      Communicator& c,
      void* operation,
      uint8_t channel,
      uint64_t gpu_ns) {
    const auto play = [&](auto* table, auto wide) {
      wide.event.type = kKernelCh;
      wide.event.parent = operation;
      wide.event.kernel_ch = {channel, hasGpuTimes() ? gpu_ns : 0};
      return started(table, c, wide);
    };
    return version_ == 3 ? play(v3(), Wide<DescriptorV3>())
        : version_ == 4  ? play(v4(), Wide<DescriptorV4>())
                         : play(v5(), Wide<DescriptorV5>());
  }
  void endChannel(void* handle, uint64_t gpu_ns) {
    StateArgs args{gpu_ns};
    if (version_ == 4) {
      v4()->record_event_state(handle, kKernelChStop, &args);
    } else if (version_ > 4) {
      v5()->record_event_state(handle, kKernelChStop, &args);
    }
    stop(handle);
  }

  // The proxy's events; from version 4 on.
  void* beginProxyOp(
      void* context,
      void* operation,
      const ProxyOpFields& fields) {
    const auto play = [&](auto* table, auto wide) {
      wide.event.type = kProxyOp;
      wide.event.parent = operation;
      wide.event.proxy_op = fields;
      return started(table, context, wide);
    };
    return version_ == 4 ? play(v4(), Wide<DescriptorV4>())
                         : play(v5(), Wide<DescriptorV5>());
  }
  void* beginStep(void* context, void* proxy_op, int step) {
    const auto play = [&](auto* table, auto wide) {
      wide.event.type = kProxyStep;
      wide.event.parent = proxy_op;
      wide.event.proxy_step = {step};
      return started(table, context, wide);
    };
    return version_ == 4 ? play(v4(), Wide<DescriptorV4>())
                         : play(v5(), Wide<DescriptorV5>());
  }
  void state(void* handle, int state, size_t bytes) {
    StateArgs args;
    args.bytes = bytes;
    if (handle != nullptr) {
      version_ == 4 ? v4()->record_event_state(handle, state, &args)
                    : v5()->record_event_state(handle, state, &args);
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
  TableV5* v5() {
    return static_cast<TableV5*>(table_);
  }

  template <class Table, class Descriptor>
  static void* started(Table* table, Communicator& c, Wide<Descriptor>& wide) {
    return started(table, c.context, wide);
  }
  template <class Table, class Descriptor>
  static void* started(Table* table, void* context, Wide<Descriptor>& wide) {
    void* handle = nullptr;
    table->start_event(context, &handle, &wide.event);
    return handle;
  }

  template <class Descriptor>
  static void describe(Descriptor& event, const Operation& o, uint64_t seq) {
    if (isMessage(o.func)) {
      event.type = kP2p;
      event.p2p = {
          o.func, nullptr, o.datatype, o.count, o.root_or_peer, o.channels};
    } else {
      event.type = kColl;
      event.coll = collOf(o, seq);
    }
  }
  static CollFields collOf(const Operation& o, uint64_t seq) {
    return {
        seq,
        o.func,
        nullptr,
        nullptr,
        o.count,
        o.root_or_peer,
        o.datatype,
        o.channels,
        8,
        "RING",
        "SIMPLE"};
  }

  void* launchV3(Communicator& c, const Operation& o, uint64_t seq) {
    Wide<DescriptorV3> wide;
    wide.event.rank = c.rank;
    if (isMessage(o.func)) {
      wide.event.type = kP2p;
      wide.event.p2p = {
          c.name.c_str(),
          c.id,
          o.func,
          nullptr,
          o.datatype,
          o.count,
          o.root_or_peer};
    } else {
      wide.event.type = kColl;
      wide.event.coll = {c.name.c_str(), c.id, collOf(o, seq)};
    }
    return started(v3(), c, wide);
  }

  int version_;
  void* table_;
};

} // namespace nccl_player
