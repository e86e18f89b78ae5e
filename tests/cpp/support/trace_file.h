#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/crc32.h"
#include "core/recorder.h"

namespace trace_file {

struct Directory {
  std::filesystem::path path;
  Directory() {
    char name[] = "/tmp/commprof-test-XXXXXX";
    if (mkdtemp(name) == nullptr) {
      throw std::runtime_error("mkdtemp");
    }
    path = name;
  }
  ~Directory() {
    std::filesystem::remove_all(path);
  }
  std::string operator/(const std::string& name) const {
    return (path / name).string();
  }
  size_t count(const std::string& suffix) const {
    size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      found += entry.path().string().ends_with(suffix) ? 1 : 0;
    }
    return found;
  }
};

// While a FullDisk exists, no file of this process can grow beyond `bytes`.
// Linux truncates the write that crosses the limit, and then returns EFBIG.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
  }

 private:
  rlimit before_{};
};

struct Content {
  bool sound = false; // All bytes are in complete, undamaged blocks.
  uint64_t session = 0;
  std::vector<std::string> metadata;
  std::vector<std::string> groups;
  std::vector<size_t> records_before_group;
  std::vector<std::string> end;
  std::vector<std::string> summaries;
  std::vector<commprof::Record> records;

  std::map<uint32_t, std::vector<commprof::Record>> byThread() const {
    std::map<uint32_t, std::vector<commprof::Record>> threads;
    for (const commprof::Record& record : records) {
      threads[record.thread].push_back(record);
    }
    return threads;
  }
};

inline void takeBlock(
    commprof::BlockType type,
    const std::string& payload,
    Content& content) {
  using commprof::BlockType;
  if (type == BlockType::kRecords) {
    const size_t before = content.records.size();
    content.records.resize(before + payload.size() / 64);
    std::memcpy(&content.records[before], payload.data(), payload.size());
    return;
  }
  if (type == BlockType::kSpare) {
    return;
  }
  if (type == BlockType::kGroup) {
    content.records_before_group.push_back(content.records.size());
  }
  auto& list = type == BlockType::kMetadata ? content.metadata
      : type == BlockType::kGroup           ? content.groups
      : type == BlockType::kSummary         ? content.summaries
                                            : content.end;
  list.push_back(payload);
}

inline Content read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(file), {}};
  Content content;
  if (data.size() < 32 || data.compare(0, 8, "COMMPROF") != 0) {
    return content;
  }
  std::memcpy(&content.session, &data[16], 8);
  size_t at = 32;
  while (at + 24 <= data.size()) {
    commprof::BlockHeader header;
    std::memcpy(&header, &data[at], 24);
    at += 24;
    if (header.magic != 0x424b5043 || header.payload_bytes > data.size() - at) {
      return content;
    }
    const std::string payload = data.substr(at, header.payload_bytes);
    if (header.type != commprof::BlockType::kSpare &&
        commprof::crc32(payload.data(), payload.size()) != header.crc32) {
      return content;
    }
    takeBlock(header.type, payload, content);
    at += payload.size();
  }
  content.sound = at == data.size();
  return content;
}

inline commprof::Record numbered(uint64_t number) {
  commprof::Record record;
  record.kind = commprof::Kind::kStep;
  record.op_id = number;
  record.thread = commprof::Recorder::threadId();
  record.timestamp_ns = number;
  return record;
}

inline bool countUp(
    const std::vector<commprof::Record>& records,
    uint64_t first) {
  for (const commprof::Record& record : records) {
    if (record.op_id != first++) {
      return false;
    }
  }
  return true;
}

} // namespace trace_file
