// The trace file of a rank, if it is small and intact. Any other file is read
// by commprof/trace/blocks.py, which says what is wrong with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/record.h"
#include "reading/packed_records.h"

namespace commprof::reading {

// Largest file that is read as a whole: it holds no more records than
// commprof/trace/packed.py packs together.
inline constexpr size_t kMostBytes = (size_t(1) << 14) * sizeof(Record);

// Device, inode, time of the last modification in ns, and size; all -1 if there
// is no such file.
struct FileStamp {
  int64_t device = -1;
  int64_t inode = -1;
  int64_t modifiedNs = -1;
  int64_t bytes = -1;
};

FileStamp stampOf(const char* path) noexcept;

struct FileBytes {
  std::unique_ptr<uint8_t[]> bytes;
  size_t size = 0;
  size_t fileSize = 0;

  std::span<const uint8_t> whole() const {
    return {bytes.get(), size};
  }
};

// Returns the first bytes of a regular file, at most `most`; nothing if it
// cannot be opened or read. Never waits for the writer of a pipe.
std::optional<FileBytes> readBytes(const char* path, size_t most);

// True if the bytes begin with the header of a trace of this version.
bool isTrace(std::span<const uint8_t> file) noexcept;

// Returns the payload of the first block if it is metadata and wholly in
// `file`, the first bytes of a trace.
std::optional<std::span<const uint8_t>> firstMetadata(
    std::span<const uint8_t> file) noexcept;

struct TraceFile {
  uint64_t session = 0;
  // Type and payload of all blocks, except blocks of records and blocks of type
  // kSpare, in the order of the file.
  std::vector<std::pair<uint32_t, std::span<const uint8_t>>> documents;
  // In the order of time. Places of a block into which no record was written
  // (their kind is 0) are left out.
  PackedRecords records;
  uint64_t firstNs = 0;
  uint64_t lastNs = 0;
};

// Splits a whole file; nothing unless every block is complete and has a correct
// checksum. The result refers to the bytes of `file`.
std::optional<TraceFile> splitTrace(std::span<const uint8_t> file);

} // namespace commprof::reading
