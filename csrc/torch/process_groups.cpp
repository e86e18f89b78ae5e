#include "torch/process_groups.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/recorder.h"

namespace commprof {

namespace {

std::string jsonString(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

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

Table& table() {
  static Table* t = new Table(); // late callbacks may outlive static objects
  return *t;
}

} // namespace

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
    Recorder::instance().addDocument(
        BlockType::kGroup, describe(entry->info.id, group));
  }
  last_group = &group;
  last_info = &entry->info;
  return entry->info;
}

} // namespace commprof
