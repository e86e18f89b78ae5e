#include "core/process/exit_note.h"
#include "base/crc32.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/trace_format.h"

namespace commprof {

namespace {

// Exit code of Python if it cannot flush its output.
constexpr int kFlushFailed = 120;

int noted_fd = -1;
pid_t noted_pid = 0;

[[maybe_unused]] void writeExitNote(int status, void*) {
  status &= 0xff; // a parent sees only these bits
  if (status == 0 || status == kFlushFailed || getpid() != noted_pid) {
    return;
  }
  char block[256];
  char* const payload = block + sizeof(BlockHeader);
  const int length = std::snprintf(
      payload,
      sizeof(block) - sizeof(BlockHeader),
      R"({"ending": {"error": "SystemExit with exit code %d"}})",
      status);
  const BlockHeader header{
      kBlockMagic,
      BlockType::kMetadata,
      uint64_t(length),
      crc32(payload, size_t(length)),
      0};
  std::memcpy(block, &header, sizeof(header));
  const off_t end = lseek(noted_fd, 0, SEEK_END);
  const ssize_t bytes = ssize_t(sizeof(header)) + length;
  if (end >= 0 && pwrite(noted_fd, block, size_t(bytes), end) != bytes) {
    (void)!ftruncate(noted_fd, end);
  }
}

} // namespace

void noteExitStatus(const std::string& path) noexcept {
#ifdef __GLIBC__
  if (noted_pid == getpid()) {
    return;
  }
  noted_fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (noted_fd >= 0 && on_exit(writeExitNote, nullptr) == 0) {
    noted_pid = getpid();
  }
#else
  (void)path;
#endif
}

} // namespace commprof
