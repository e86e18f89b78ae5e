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
  // to the last complete block, error() says why, and later calls try again.
  bool writeBlock(BlockType type, const void* payload, size_t bytes) noexcept;

  bool writeJson(BlockType type, const std::string& json) noexcept {
    return writeBlock(type, json.data(), json.size());
  }

  // At most this much JSON fits into a summary.
  static constexpr size_t kMaxSummaryBytes = 384 << 10;
  // Writes a summary over the last but one, so that the file does not grow and
  // the last one stays whole meanwhile: after a kill at any moment a reader
  // finds one of the two. False without room on the disk or if it is too long.
  bool writeSummary(const std::string& json) noexcept;

  // Room for a note, kept on the disk from now on.
  bool reserveNote() noexcept;
  // Overwrites it with JSON metadata: that needs no room on a full disk. False
  // if no room was kept, or too little.
  bool writeNote(std::string_view json) noexcept;

  // Whether the file has lost its name: somebody removed it.
  bool removed() const noexcept;
  // Makes it anew under that name, with its directories and all that was
  // written. False if that fails or the name is taken; error() says why.
  bool restore() noexcept;

  uint64_t bytesWritten() const noexcept {
    return offset_;
  }
  // errno of the last failed write; 0 if none failed yet.
  int error() const noexcept {
    return error_;
  }

 private:
  // The place of a summary of up to `bytes`, or of a note.
  struct Slot {
    uint64_t offset = 0;
    uint64_t bytes = 0; // 0: not made yet
  };
  bool overwrite(
      const Slot& slot,
      BlockType type,
      std::string_view padded) noexcept;

  const std::string path_;
  Slot slots_[2]; // [0] is older
  Slot note_;
  int fd_ = -1;
  uint64_t offset_ = 0;
  int error_ = 0;
};

} // namespace commprof
