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

  // Appends one block. On failure (disk full, file gone) the file is cut back
  // to the last complete block, error() is the errno, and later calls retry.
  bool writeBlock(BlockType type, const void* payload, size_t bytes) noexcept;

  bool writeJson(BlockType type, const std::string& json) noexcept {
    return writeBlock(type, json.data(), json.size());
  }

  // Largest JSON of a summary.
  static constexpr size_t kMaxSummaryBytes = 384 << 10;
  // Overwrites the older of the file's two summaries, so that the file does not
  // grow and the newer one stays complete. After a kill at any moment a reader
  // finds at least one complete summary. False if the disk is full or the JSON
  // is too long.
  bool writeSummary(const std::string& json) noexcept;

  // Reserves space on the disk for a note, which states why writing failed.
  bool reserveNote() noexcept;
  // Overwrites the reserved space with JSON metadata. This works even if the
  // disk is full. False if the space is missing or too small.
  bool writeNote(std::string_view json) noexcept;

  // True if somebody removed the file.
  bool removed() const noexcept;
  // Makes the file anew at its path, with its directories and all content.
  // False if that fails or the path exists; error() is then the errno.
  bool restore() noexcept;

  uint64_t bytesWritten() const noexcept {
    return offset_;
  }
  // errno of the last failed write; 0 if none failed yet.
  int error() const noexcept {
    return error_;
  }

 private:
  // Space for a summary of up to `bytes`, or for a note.
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
