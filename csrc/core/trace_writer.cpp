#include "core/trace_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/crc32.h"

namespace commprof {

namespace {

// Writes all bytes at `offset`. Returns 0 or errno.
int writeFully(int fd, const void* data, size_t bytes, uint64_t offset) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd, at, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return n < 0 ? errno : ENOSPC;
    }
    at += n;
    bytes -= size_t(n);
    offset += uint64_t(n);
  }
  return 0;
}

// Copies the first `bytes` of a file into another. Returns 0 or errno.
int copyFile(int from, int to, uint64_t bytes) noexcept {
  std::vector<char> buffer;
  try {
    buffer.resize(std::min<uint64_t>(bytes, 1 << 20));
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  for (uint64_t at = 0; at < bytes;) {
    const size_t wanted = std::min<uint64_t>(buffer.size(), bytes - at);
    const ssize_t n = pread(from, buffer.data(), wanted, off_t(at));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return n < 0 ? errno : EIO;
    }
    if (const int error = writeFully(to, buffer.data(), size_t(n), at)) {
      return error;
    }
    at += uint64_t(n);
  }
  return 0;
}

// JSON that states why writing failed, padded with spaces.
using Note = std::array<char, 256>;

Note spaced(std::string_view text) noexcept {
  Note note;
  note.fill(' ');
  std::copy(text.begin(), text.end(), note.begin());
  return note;
}

} // namespace

TraceWriter::TraceWriter(const std::string& path, uint64_t session)
    : path_(path) {
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  FileHeader header{};
  std::memcpy(header.magic, kTraceMagic, sizeof(kTraceMagic));
  header.version = kTraceVersion;
  header.header_bytes = sizeof(FileHeader);
  header.session = session;
  const int error = writeFully(fd_, &header, sizeof(header), 0);
  if (error != 0) {
    close(fd_);
    throw std::system_error(error, std::generic_category(), path);
  }
  offset_ = sizeof(header);
}

// Does not change the file, because a forked child also runs this destructor.
TraceWriter::~TraceWriter() {
  close(fd_);
}

bool TraceWriter::writeBlock(
    BlockType type,
    const void* payload,
    size_t bytes) noexcept {
  const BlockHeader header{kBlockMagic, type, bytes, crc32(payload, bytes), 0};
  // The header is written last, because it makes the block valid.
  int error = writeFully(fd_, payload, bytes, offset_ + sizeof(header));
  if (error == 0) {
    error = writeFully(fd_, &header, sizeof(header), offset_);
  }
  if (error != 0) {
    error_ = error;
    (void)!ftruncate(fd_, off_t(offset_));
    return false;
  }
  offset_ += sizeof(header) + bytes;
  return true;
}

bool TraceWriter::writeSummary(const std::string& json) noexcept {
  // If one summary fits into a small slot, later summaries usually fit too.
  constexpr uint64_t kSmallBytes = 48 << 10;
  if (json.size() > kMaxSummaryBytes) {
    return false;
  }
  const uint64_t wanted =
      json.size() <= kSmallBytes ? kSmallBytes : kMaxSummaryBytes;
  std::string padded;
  try {
    padded.reserve(kMaxSummaryBytes);
    padded = json;
    padded.resize(std::max(wanted, slots_[1].bytes), ' ');
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (slots_[0].bytes == padded.size()) {
    if (!overwrite(slots_[0], BlockType::kSummary, padded)) {
      return false;
    }
    std::swap(slots_[0], slots_[1]);
    return true;
  }
  const Slot made{offset_, padded.size()};
  if (!writeBlock(BlockType::kSummary, padded.data(), padded.size())) {
    return false;
  }
  slots_[0] = slots_[1];
  slots_[1] = made;
  return true;
}

bool TraceWriter::overwrite(
    const Slot& slot,
    BlockType type,
    std::string_view padded) noexcept {
  BlockHeader header{kBlockMagic, BlockType::kSpare, slot.bytes, 0, 0};
  int error = writeFully(fd_, &header, sizeof(header), slot.offset);
  if (error == 0) {
    error = writeFully(
        fd_, padded.data(), padded.size(), slot.offset + sizeof(header));
  }
  if (error == 0) {
    header.type = type;
    header.crc32 = crc32(padded.data(), padded.size());
    error = writeFully(fd_, &header, sizeof(header), slot.offset);
  }
  error_ = error != 0 ? error : error_;
  return error == 0;
}

bool TraceWriter::reserveNote() noexcept {
  const Note room = spaced("");
  const Slot made{offset_, room.size()};
  if (!writeBlock(BlockType::kSpare, room.data(), room.size())) {
    return false;
  }
  note_ = made;
  return true;
}

bool TraceWriter::writeNote(std::string_view json) noexcept {
  if (note_.bytes == 0 || json.size() > note_.bytes) {
    return false;
  }
  const Note note = spaced(json);
  return overwrite(
      note_, BlockType::kMetadata, std::string_view(note.data(), note.size()));
}

bool TraceWriter::removed() const noexcept {
  struct stat status;
  return fstat(fd_, &status) == 0 && status.st_nlink == 0;
}

bool TraceWriter::restore() noexcept {
  try {
    std::error_code failed; // open() fails too if this failed
    std::filesystem::create_directories(
        std::filesystem::path(path_).parent_path(), failed);
  } catch (const std::bad_alloc&) {
    error_ = ENOMEM;
    return false;
  }
  // O_EXCL keeps a file that another process may have created at this path.
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  const int fd = open(path_.c_str(), flags, 0644);
  const int error = fd < 0 ? errno : copyFile(fd_, fd, offset_);
  if (error != 0) {
    error_ = error;
    if (fd >= 0) {
      unlink(path_.c_str());
      close(fd);
    }
    return false;
  }
  close(fd_);
  fd_ = fd;
  return true;
}

} // namespace commprof
