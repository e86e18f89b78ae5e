// Reads small, intact trace files. commprof/trace/blocks.py reads all others.
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

// Size of the largest file that is read as a whole. Such a file has at most as
// many records as commprof/trace/packed.py packs together.
inline constexpr size_t kMostBytes = (size_t(1) << 14) * sizeof(Record);

// Identifies one version of a file. All fields are -1 if there is no such file.
// `modifiedNs` is the time of the last modification.
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

// Returns at most the first `most` bytes of a regular file. Returns nothing if
// the file is not regular or cannot be read. Does not wait for the writer of a
// pipe.
std::optional<FileBytes> readBytes(const char* path, size_t most);

// True if the bytes begin with the header of a trace of this version.
bool isTrace(std::span<const uint8_t> file) noexcept;

// `file`: the first bytes of a trace. Returns the payload of the first block.
// Returns nothing if that block is incomplete or is not metadata.
std::optional<std::span<const uint8_t>> firstMetadata(
    std::span<const uint8_t> file) noexcept;

struct TraceFile {
  uint64_t session = 0;
  // Type and payload of each block, in the order of the file. Blocks of records
  // and of type kSpare are left out.
  std::vector<std::pair<uint32_t, std::span<const uint8_t>>> documents;
  // Sorted by time. Unused places, whose kind is 0, are left out.
  PackedRecords records;
  uint64_t firstNs = 0;
  uint64_t lastNs = 0;
};

// Splits a whole file into blocks. Returns nothing if a block is incomplete or
// has a wrong checksum. The result points into `file`.
std::optional<TraceFile> splitTrace(std::span<const uint8_t> file);

} // namespace commprof::reading
