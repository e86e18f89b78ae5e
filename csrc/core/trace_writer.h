// Appends blocks to one trace file. Not thread-safe: the recorder holds a lock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

  // Appends one block. On failure, cuts the file back to the last complete
  // block and returns false. error() is then the errno. Later calls try again.
  bool writeBlock(BlockType type, const void* payload, size_t bytes) noexcept;

  bool writeJson(BlockType type, const std::string& json) noexcept {
    return writeBlock(type, json.data(), json.size());
  }

  // Largest size of a summary's JSON, in bytes.
  static constexpr size_t kMaxSummaryBytes = 384 << 10;
  // Overwrites the older of the file's two summaries. Appends the summary if
  // the file has fewer than two, or the older one is too short. If the process
  // is killed, the file still has a complete earlier summary, if any. Returns
  // false if writing fails or the JSON is too long.
  bool writeSummary(const std::string& json) noexcept;

  // Reserves disk space for writeNote().
  bool reserveNote() noexcept;
  // Writes JSON that states why writing failed, into the reserved space. Works
  // even if the disk is full. Returns false if the space is missing or too
  // small.
  bool writeNote(std::string_view json) noexcept;

  bool removed() const noexcept;
  // Writes all content to a new file at the path. Creates missing directories.
  // Returns false if that fails or the path exists; error() is then the errno.
  bool restore() noexcept;

  uint64_t bytesWritten() const noexcept {
    return offset_;
  }
  // errno of the last failed write; 0 if none failed yet.
  int error() const noexcept {
    return error_;
  }

 private:
  struct Slot {
    uint64_t offset = 0;
    uint64_t bytes = 0; // 0: not reserved yet
  };
  bool overwrite(
      const Slot& slot,
      BlockType type,
      std::string_view padded) noexcept;

  const std::string path_;
  Slot slots_[2]; // slots_[0] is the older one
  Slot note_;
  int fd_ = -1;
  uint64_t offset_ = 0;
  int error_ = 0;
};

} // namespace commprof
