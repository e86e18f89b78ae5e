// Layout of a trace file, little-endian. docs/architecture.md describes it.
//
//   FileHeader, then blocks: BlockHeader + payload.
//
// Each block has its own checksum. A block that is cut off at the end of the
// file is ignored.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof {

inline constexpr char kTraceMagic[8] = {'C', 'O', 'M', 'M', 'P', 'R', 'O', 'F'};
inline constexpr uint32_t kTraceVersion = 1;
inline constexpr uint32_t kBlockMagic = 0x424b5043; // "CPKB" in the file

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes; // offset of the first block
  uint64_t session; // random; also in the ring files of this trace
  uint64_t reserved;
};
static_assert(sizeof(FileHeader) == 32);

enum class BlockType : uint32_t {
  kMetadata = 1, // JSON object: see commprof/trace/documents.py
  kRecords = 2, // Record[]
  kGroup = 3, // JSON object: one process group
  kEnd = 4, // JSON object: closing counters; absent if the process died
  kSalvaged = 5, // JSON object: replaces kEnd, written by trace/reader.py
  kStack = 6, // JSON object: the Python frames that issued operations
  kSummary = 7, // JSON object, then spaces; the highest `sequence` is used
  kSpare = 8, // reserved space, or a block that is being written
  kCommunicator = 9, // JSON object: one communicator of NCCL
};

struct BlockHeader {
  uint32_t magic;
  BlockType type;
  uint64_t payload_bytes;
  uint32_t crc32; // of the payload, as zlib computes it
  uint32_t reserved;
};
static_assert(sizeof(BlockHeader) == 24);

} // namespace commprof
