#include "torch/capture/process_groups.h"

#include <pthread.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/json_string.h"
#include "core/recorder.h"

namespace commprof {

namespace {

std::string describe(uint32_t id, c10d::ProcessGroup& group) {
  return "{\"id\": " + std::to_string(id) +
      ", \"name\": " + jsonString(group.getGroupName()) +
      ", \"description\": " + jsonString(group.getGroupDesc()) +
      ", \"backend\": " + jsonString(group.getBackendName()) +
      ", \"rank\": " + std::to_string(group.getRank()) +
      ", \"size\": " + std::to_string(group.getSize()) + "}";
}

// The weak reference keeps the address from being given to another group.
struct GroupEntry {
  GroupInfo info;
  c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
  explicit GroupEntry(c10d::ProcessGroup& g)
      : group(c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&g)) {}
};

struct GroupTable {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<GroupEntry>> entries;
};

// Late callbacks may outlive static objects. The recorder comes first, since
// its lock is taken after this one, before a fork too.
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
  if (&group == last_group) {
    return *last_info;
  }
  std::lock_guard<std::mutex> lock(groupTable().mutex);
  auto& entries = groupTable().entries;
  std::unique_ptr<GroupEntry>& entry = entries[&group];
  if (!entry) {
    entry = std::make_unique<GroupEntry>(group);
    entry->info.id = uint32_t(entries.size());
    Recorder::instance().addGroup(
        {entry->info.id,
         group.getGroupName(),
         uint32_t(group.getRank()),
         uint32_t(group.getSize())},
        describe(entry->info.id, group));
  }
  last_group = &group;
  last_info = &entry->info;
  return entry->info;
}

} // namespace commprof
