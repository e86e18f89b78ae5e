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
struct Entry {
  GroupInfo info;
  c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
  explicit Entry(c10d::ProcessGroup& g)
      : group(c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&g)) {}
};

struct Table {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Entry>> entries;
};

// Late callbacks may outlive static objects. The recorder comes first, since
// its lock is taken after this one, before a fork too.
Table& table() {
  static Table* t = [] {
    Recorder::instance();
    pthread_atfork(
        [] { table().mutex.lock(); },
        [] { table().mutex.unlock(); },
        [] { table().mutex.unlock(); });
    return new Table();
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
  std::lock_guard<std::mutex> lock(table().mutex);
  auto& entries = table().entries;
  std::unique_ptr<Entry>& entry = entries[&group];
  if (!entry) {
    entry = std::make_unique<Entry>(group);
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
