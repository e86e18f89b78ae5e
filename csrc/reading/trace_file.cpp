#include "reading/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/crc32.h"
#include "core/trace_format.h"

namespace commprof::reading {

namespace {

template <class T>
T structAt(std::span<const uint8_t> bytes, size_t offset) noexcept {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

uint64_t timeOf(const uint8_t* row) noexcept {
  uint64_t value;
  std::memcpy(&value, row + offsetof(Record, timestamp_ns), sizeof(value));
  return value;
}

struct Payload {
  BlockType type = BlockType::kSpare;
  std::span<const uint8_t> bytes;
};

// Moves `offset` to the end of the returned block.
std::optional<Payload> nextBlock(
    std::span<const uint8_t> file,
    size_t& offset) noexcept {
  if (file.size() - offset < sizeof(BlockHeader)) {
    return {};
  }
  const auto header = structAt<BlockHeader>(file, offset);
  offset += sizeof(header);
  if (header.magic != kBlockMagic ||
      header.payload_bytes > file.size() - offset) {
    return {};
  }
  const Payload found = {
      header.type, file.subspan(offset, size_t(header.payload_bytes))};
  offset += found.bytes.size();
  // A kSpare block may hold an incomplete summary, so its checksum is not
  // checked.
  if (found.type != BlockType::kSpare &&
      crc32(found.bytes.data(), found.bytes.size()) != header.crc32) {
    return {};
  }
  return found;
}

class Descriptor {
 public:
  explicit Descriptor(const char* path) noexcept
      : fd_(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const noexcept {
    return fd_;
  }

 private:
  int fd_;
};

} // namespace

FileStamp stampOf(const char* path) noexcept {
  struct stat status;
  if (stat(path, &status) != 0) {
    return {};
  }
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  return {
      int64_t(status.st_dev),
      int64_t(status.st_ino),
      int64_t(status.st_mtim.tv_sec) * kNsPerSecond + status.st_mtim.tv_nsec,
      int64_t(status.st_size)};
}

std::optional<FileBytes> readBytes(const char* path, size_t most) {
  const Descriptor file(path);
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0 ||
      !S_ISREG(status.st_mode)) {
    return {};
  }
  FileBytes found;
  found.fileSize = size_t(status.st_size);
  found.size = std::min(found.fileSize, most);
  found.bytes.reset(new uint8_t[found.size]);
  const ssize_t read = pread(file.get(), found.bytes.get(), found.size, 0);
  if (read < 0 || size_t(read) != found.size) {
    return {};
  }
  return found;
}

bool isTrace(std::span<const uint8_t> file) noexcept {
  if (file.size() < sizeof(FileHeader)) {
    return false;
  }
  const auto header = structAt<FileHeader>(file, 0);
  return std::memcmp(header.magic, kTraceMagic, sizeof(kTraceMagic)) == 0 &&
      header.version == kTraceVersion && header.header_bytes >= sizeof(header);
}

std::optional<std::span<const uint8_t>> firstMetadata(
    std::span<const uint8_t> file) noexcept {
  if (!isTrace(file)) {
    return {};
  }
  size_t offset = structAt<FileHeader>(file, 0).header_bytes;
  if (offset > file.size()) {
    return {};
  }
  const auto block = nextBlock(file, offset);
  if (!block || block->type != BlockType::kMetadata) {
    return {};
  }
  return block->bytes;
}

std::optional<TraceFile> splitTrace(std::span<const uint8_t> file) {
  if (!isTrace(file)) {
    return {};
  }
  const auto header = structAt<FileHeader>(file, 0);
  size_t offset = header.header_bytes;
  if (offset > file.size()) {
    return {};
  }
  TraceFile found;
  found.session = header.session;
  Rows rows;
  bool inOrder = true;
  uint64_t newestNs = 0;
  while (offset < file.size()) {
    const auto block = nextBlock(file, offset);
    if (!block) {
      return {};
    }
    if (block->type == BlockType::kRecords) {
      if (block->bytes.size() % sizeof(Record) != 0) {
        return {};
      }
      const uint8_t* const end = block->bytes.data() + block->bytes.size();
      for (const uint8_t* row = block->bytes.data(); row != end;
           row += sizeof(Record)) {
        if (row[offsetof(Record, kind)] == 0) {
          continue;
        }
        const uint64_t timeNs = timeOf(row);
        inOrder = inOrder && timeNs >= newestNs;
        newestNs = timeNs;
        rows.push_back(row);
      }
    } else if (block->type != BlockType::kSpare) {
      found.documents.emplace_back(uint32_t(block->type), block->bytes);
    }
  }
  if (!inOrder) {
    std::stable_sort(
        rows.begin(), rows.end(), [](const uint8_t* a, const uint8_t* b) {
          return timeOf(a) < timeOf(b);
        });
  }
  if (!rows.empty()) {
    found.firstNs = timeOf(rows.front());
    found.lastNs = timeOf(rows.back());
    found.records = packRows(rows);
  }
  return found;
}

} // namespace commprof::reading
