#include "base/clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace commprof {

namespace {

// /proc/thread-self is resolved when opened, so each thread keeps its own file.
struct SchedstatFile {
  int fd = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  ~SchedstatFile() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
};

} // namespace

uint64_t threadRunDelayNs() noexcept {
  static thread_local SchedstatFile file;
  char text[96];
  const ssize_t n =
      file.fd < 0 ? -1 : pread(file.fd, text, sizeof(text) - 1, 0);
  if (n <= 0) {
    return 0;
  }
  text[n] = '\0';
  const char* second = std::strchr(text, ' ');
  return second == nullptr ? 0 : std::strtoull(second, nullptr, 10);
}

} // namespace commprof
