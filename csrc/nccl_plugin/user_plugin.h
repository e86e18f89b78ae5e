// The profiler plugin that the user has chosen for NCCL
// ($COMMPROF_NCCL_PLUGIN). NCCL loads only one plugin per process, so
// commprof's plugin passes NCCL's reports on to the user's plugin. NCCL gets
// one handle for both plugins (handle_pairs.h). Commprof's plugin always
// reports success to NCCL. No function below init() allocates, locks or makes
// system calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "nccl_plugin/handle_pairs.h"
#include "nccl_plugin/interface.h"
#include "nccl_plugin/run.h"

namespace commprof::nccl {

// The arguments that NCCL gives to a plugin for a new communicator.
struct Opening {
  void** context;
  uint64_t id; // version 3 gives only `context` and `mask`
  int* mask;
  const char* name;
  int nodes;
  int ranks; // Communicator::kUnknown with version 3
  int rank;
  Logger logger;
};

class UserPlugin {
 public:
  // Returns the user's plugin for this version of the interface. Null if there
  // is none, or if it is not loaded.
  static UserPlugin* of(int asked) noexcept {
    return loaded_[size_t(asked)].load(std::memory_order_acquire);
  }
  // Like of(), but loads the plugin at the first call. If that fails, prints
  // the reason on stderr.
  static UserPlugin* load(int asked) noexcept;

  // Returns true if the communicator is passed on. Sets the user's context.
  bool init(const Opening& opening, void** context) noexcept;
  void finalize(void* context) noexcept {
    table_->finalize(context);
  }
  // Reports an event to the user's plugin, and returns the handle that the
  // user's plugin gives. Null if the user's plugin did not ask for such events.
  // `event` is unchanged after the call.
  template <class Event>
  void* start(void* context, Event& event) noexcept;
  void stop(void* handle) noexcept {
    table_->stop_event(handle);
  }
  void record(void* handle, int state, StateArgs* args) noexcept {
    table_->record_event_state(handle, state, args);
  }

 private:
  // The tables of all versions differ only in init() and in the descriptor.
  using AnyTable = Table<void*, void>;

  UserPlugin(int version, const AnyTable* table, const char* name)
      : version_(version), table_(table), name_(name) {}
  static UserPlugin* opened(int asked, const char* name);
  Result initTable(const Opening& opening, void** context, int* mask) const;
  bool wants(uint64_t type) const noexcept;
  // Asks NCCL for the events that the user's plugin asks for.
  void followMask() noexcept {
    askForUser(__atomic_load_n(&mask_, __ATOMIC_RELAXED));
  }

  static constexpr int kOldest = 3;
  static constexpr int kNewest = 7;
  static inline std::array<std::atomic<UserPlugin*>, kNewest + 1> loaded_{};

  const int version_; // newest that NCCL and the user's plugin both know
  const AnyTable* const table_;
  const char* const name_;
  // The user's plugin may keep the address and write to it at any time.
  int mask_ = 0;
};

// ---- Member templates of the class above

template <class Event>
void* UserPlugin::start(void* context, Event& event) noexcept {
  if (!wants(event.type)) {
    followMask(); // the mask may have changed meanwhile
    return nullptr;
  }
  // `event` is changed in place, not in a copy, because the length of NCCL's
  // descriptor depends on the version.
  void* const parent = event.parent;
  const bool foreign = // a handle of another process (PXN)
      event.type == kProxyOp && event.proxy_op.pid != thisProcess();
  event.parent = foreign ? parent : usersHandle(parent);
  void** group = nullptr;
  void* group_given = nullptr;
  if constexpr (std::is_same_v<Event, DescriptorV5>) {
    if (event.type == kColl || event.type == kP2p) {
      group = event.type == kColl ? &event.coll.group : &event.p2p.group;
      group_given = std::exchange(*group, usersHandle(*group));
      event.parent = version_ < 5 ? *group : event.parent;
    }
  }
  void* handle = nullptr;
  table_->start_event(context, &handle, &event);
  followMask();
  event.parent = parent;
  if (group != nullptr) {
    *group = group_given;
  }
  return handle;
}

} // namespace commprof::nccl
