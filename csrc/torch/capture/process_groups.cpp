#include "torch/capture/process_groups.h"

#include <pthread.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/json_string.h"
#include "core/recorder.h"

namespace commprof {

namespace {

std::string describe(const GroupInfo& info, c10d::ProcessGroup& group) {
  return "{\"id\": " + std::to_string(info.id) +
      ", \"name\": " + jsonString(group.getGroupName()) +
      ", \"description\": " + jsonString(group.getGroupDesc()) +
      ", \"backend\": " + jsonString(group.getBackendName()) +
      ", \"rank\": " + std::to_string(group.getRank()) +
      ", \"size\": " + std::to_string(group.getSize()) +
      ", \"token\": " + jsonString(info.token) + "}";
}

// The weak reference prevents the group's address from being reused.
struct GroupEntry {
  GroupInfo info;
  c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
  explicit GroupEntry(c10d::ProcessGroup& g)
      : group(c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&g)) {}
};

struct GroupTable {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<GroupEntry>> entries;
  uint32_t count = 0; // number of all groups so far
  size_t sweep_at = 64; // number of entries
  // Number of sweeps, which invalidate the entries that threads remember.
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
    // Incremented first, so that a thread with a new group at an address
    // released here sees the new count.
    sweeps.fetch_add(1, std::memory_order_relaxed);
    std::erase_if(entries, [](const auto& entry) {
      return entry.second->group.expired();
    });
    sweep_at = 2 * entries.size() + 64;
  }
};

// Never destroyed: late callbacks may outlive static objects. The recorder is
// created first, so that its handler of forks is too: before a fork its lock is
// acquired after the table's, as everywhere.
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

GroupInfo& groupInfo(c10d::ProcessGroup& group) {
  static thread_local const void* last_group = nullptr;
  static thread_local GroupInfo* last_info = nullptr;
  static thread_local uint64_t last_sweeps = 0;
  static GroupTable& known = groupTable();
  // If a thread sees an old count here, its group, which is alive, is older
  // than that sweep, so its entry still exists.
  const uint64_t sweeps = known.sweeps.load(std::memory_order_relaxed);
  if (&group == last_group && sweeps == last_sweeps) {
    return *last_info;
  }
  const std::lock_guard<std::mutex> lock(known.mutex);
  GroupInfo& info = known.entry(group).info;
  if (info.id == 0) {
    info.id = ++known.count;
    Recorder::instance().addGroup(
        {info.id,
         group.getGroupName(),
         uint32_t(group.getRank()),
         uint32_t(group.getSize()),
         group.getBackendName() == "gloo"},
        describe(info, group));
  }
  last_group = &group;
  last_info = &info;
  last_sweeps = known.sweeps.load(std::memory_order_relaxed);
  return info;
}

void noteGroupToken(c10d::ProcessGroup& group, const std::string& token) {
  GroupTable& table = groupTable();
  const std::lock_guard<std::mutex> lock(table.mutex);
  table.entry(group).info.token = token;
}

} // namespace commprof
