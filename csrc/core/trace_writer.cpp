#include "core/trace_writer.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace commprof {

namespace {

std::array<uint32_t, 256> makeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) {
      c = (c & 1) ? 0xedb88320u ^ (c >> 1) : c >> 1;
    }
    table[i] = c;
  }
  return table;
}

// Writes everything at `offset` or returns errno.
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

} // namespace

uint32_t crc32(const void* data, size_t bytes) noexcept {
  static const std::array<uint32_t, 256> table = makeCrcTable();
  uint32_t c = 0xffffffffu;
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) {
    c = table[(c ^ at[i]) & 0xff] ^ (c >> 8);
  }
  return c ^ 0xffffffffu;
}

TraceWriter::TraceWriter(const std::string& path, uint64_t session) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
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

// Touches the file in no way: a forked child has the descriptor too.
TraceWriter::~TraceWriter() {
  close(fd_);
}

bool TraceWriter::writeBlock(
    BlockType type,
    const void* payload,
    size_t bytes) noexcept {
  const BlockHeader header{kBlockMagic, type, bytes, crc32(payload, bytes), 0};
  // The payload first: a block exists once its header is in place.
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

} // namespace commprof
