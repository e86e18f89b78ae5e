#include "torch/capture/process_groups.h"

#include <pthread.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/json_string.h"
#include "core/recorder.h"

namespace commprof {

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

BackendPtr backendOf(c10d::ProcessGroup& group, c10::DeviceType type) {
  try {
    return group.getBackend(type);
  } catch (const c10::Error&) { // no backend is registered; the call will fail
    return nullptr;
  }
}

// A backend is null if the group has none of that kind.
struct Backends {
  BackendPtr host; // backend for CPUs
  BackendPtr device; // backend of the first device type that has one

  explicit Backends(c10d::ProcessGroup& group) {
    for (const c10::Device& type : group.getDeviceTypes()) {
      BackendPtr& backend = type.is_cpu() ? host : device;
      if (backend == nullptr) {
        backend = backendOf(group, type.type());
      }
    }
  }

  bool areApart() const {
    return host != nullptr && device != nullptr && host != device;
  }
};

std::string backendName(
    c10d::ProcessGroup& group,
    const Backends& backends,
    bool of_host) {
  if (of_host) {
    return backends.host->getBackendName();
  }
  const std::string name = group.getBackendName();
  if (name != "undefined") { // else the script named no backend, or several
    return name;
  }
  const BackendPtr& backend =
      backends.device != nullptr ? backends.device : backends.host;
  return backend != nullptr ? backend->getBackendName() : name;
}

// Returns a name for one of a group's two backends. The name is the same on all
// ranks. Empty if the group has no name.
std::string apart(const std::string& name, const std::string& backend) {
  return name.empty() ? name : name + ":" + backend;
}

// Writes a group's description to the trace. `of_host`: describes the group's
// backend for CPUs.
void describe(const GroupInfo& info, c10d::ProcessGroup& group, bool of_host) {
  const std::string backend = backendName(group, Backends(group), of_host);
  std::string name = group.getGroupName();
  std::string token = info.token;
  if (of_host) {
    name = apart(name, backend);
    token = apart(token, backend);
  }
  Recorder::instance().addGroup(
      {info.id,
       name,
       uint32_t(group.getRank()),
       uint32_t(group.getSize()),
       backend == "gloo"},
      "{\"id\": " + std::to_string(info.id) +
          ", \"name\": " + jsonString(name) +
          ", \"description\": " + jsonString(group.getGroupDesc()) +
          ", \"backend\": " + jsonString(backend) +
          ", \"rank\": " + std::to_string(group.getRank()) +
          ", \"size\": " + std::to_string(group.getSize()) +
          ", \"token\": " + jsonString(token) + "}");
}

// The weak reference prevents the group's address from being reused.
struct GroupEntry {
  GroupInfo info;
  GroupInfo host; // for a separate backend for CPUs
  std::optional<bool> host_is_apart; // set by the group's first call
  c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
  explicit GroupEntry(c10d::ProcessGroup& g)
      : group(c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&g)) {}
};

struct GroupTable {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<GroupEntry>> entries;
  uint32_t count = 0;
  size_t sweep_at = 64; // number of entries at which the next sweep takes place
  // Number of sweeps. Each sweep invalidates the entries that threads remember.
  std::atomic<uint64_t> sweeps{0};

  GroupEntry& entry(c10d::ProcessGroup& group) {
    const auto found = entries.find(&group);
    if (found != entries.end()) {
      return *found->second;
    }
    sweep();
    return *(entries[&group] = std::make_unique<GroupEntry>(group));
  }

  // Removes destroyed groups once the table has grown, because a job may create
  // groups in a loop.
  void sweep() {
    if (entries.size() < sweep_at) {
      return;
    }
    // The count must change before an address is released: a new group may get
    // that address.
    sweeps.fetch_add(1, std::memory_order_relaxed);
    std::erase_if(entries, [](const auto& entry) {
      return entry.second->group.expired();
    });
    sweep_at = 2 * entries.size() + 64;
  }
};

// Never destroyed: late callbacks may outlive static objects. The recorder is
// created first, because fork handlers run in reverse order: its lock is then
// acquired after the table's lock, as everywhere else.
GroupTable& groupTable() {
  static GroupTable* t = [] {
    Recorder::instance();
    pthread_atfork(
        [] { groupTable().mutex.lock(); },
        [] { groupTable().mutex.unlock(); },
        [] { groupTable().mutex.unlock(); });
    return new GroupTable();
  }();
  return *t;
}

} // namespace

uint32_t GroupInfo::nextMessage(Op op, int64_t peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  any_source_ = any_source_ || op == Op::kRecvAnySource;
  const bool sent = op == Op::kSend;
  return !sent && any_source_ ? kNoSeq : messages_[{sent, peer}]++;
}

GroupInfo& groupInfo(c10d::ProcessGroup& group, c10::DeviceType type) {
  static thread_local const void* last_group = nullptr;
  static thread_local c10::DeviceType last_type = c10::DeviceType::CPU;
  static thread_local GroupInfo* last_info = nullptr;
  static thread_local uint64_t last_sweeps = 0;
  static GroupTable& known = groupTable();
  // An old count is harmless: the group is alive, so no sweep has removed its
  // entry.
  const uint64_t sweeps = known.sweeps.load(std::memory_order_relaxed);
  if (&group == last_group && type == last_type && sweeps == last_sweeps) {
    return *last_info;
  }
  const std::lock_guard<std::mutex> lock(known.mutex);
  GroupEntry& entry = known.entry(group);
  if (!entry.host_is_apart) {
    entry.host_is_apart = Backends(group).areApart();
  }
  const bool of_host = type == c10::DeviceType::CPU && *entry.host_is_apart;
  GroupInfo& info = of_host ? entry.host : entry.info;
  if (info.id == 0) {
    info.id = ++known.count;
    describe(info, group, of_host);
  }
  last_group = &group;
  last_type = type;
  last_info = &info;
  last_sweeps = known.sweeps.load(std::memory_order_relaxed);
  return info;
}

void noteGroupToken(c10d::ProcessGroup& group, const std::string& token) {
  GroupTable& table = groupTable();
  const std::lock_guard<std::mutex> lock(table.mutex);
  GroupEntry& entry = table.entry(group);
  entry.info.token = token;
  entry.host.token = token;
}

} // namespace commprof
