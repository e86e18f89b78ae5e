#include "base/clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace commprof {

namespace {

// /proc/thread-self is resolved when opened, so each thread keeps its own file.
class SchedstatFile {
 public:
  ~SchedstatFile() {
    close();
  }
  // Returns the descriptor. A forked child has its parent's file, and opens its
  // own.
  int own() noexcept {
    const pid_t pid = getpid();
    if (pid_ != pid) {
      close();
      pid_ = pid;
      fd_ = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    }
    return fd_;
  }

 private:
  void close() noexcept {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  pid_t pid_ = 0; // process that opened the file
  int fd_ = -1;
};

} // namespace

uint64_t threadRunDelayNs() noexcept {
  static thread_local SchedstatFile file;
  const int fd = file.own();
  char text[96];
  const ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
  if (n <= 0) {
    return 0;
  }
  text[n] = '\0';
  const char* second = std::strchr(text, ' ');
  return second == nullptr ? 0 : std::strtoull(second, nullptr, 10);
}

} // namespace commprof
