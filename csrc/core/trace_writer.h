// Appends blocks to one trace file. Not thread-safe: the recorder holds a lock.
#pragma once

#include <cstdint>
#include <string>

#include "core/record.h"
#include "core/trace_format.h"

namespace commprof {

class TraceWriter {
 public:
  // Creates or truncates `path` and writes the file header. Throws
  // std::system_error naming the path.
  TraceWriter(const std::string& path, uint64_t session);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Appends one block. On failure (disk full, file gone) the file is cut back
  // to the last complete block, error() says why, and later calls try again.
  bool writeBlock(BlockType type, const void* payload, size_t bytes) noexcept;

  bool writeJson(BlockType type, const std::string& json) noexcept {
    return writeBlock(type, json.data(), json.size());
  }

  uint64_t bytesWritten() const noexcept {
    return offset_;
  }
  // errno of the last failed write; 0 if none failed yet.
  int error() const noexcept {
    return error_;
  }

 private:
  int fd_ = -1;
  uint64_t offset_ = 0;
  int error_ = 0;
};

} // namespace commprof
