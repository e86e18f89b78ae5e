#include "base/host_counts.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace commprof {

namespace {

constexpr uint64_t kNsPerUs = 1'000;
constexpr uint64_t kLookAgainNs = 1'000'000'000;
// Largest size in bytes of /proc/thread-self/cgroup. Version 1 has about a
// dozen lines, with hundreds of bytes per line in Kubernetes.
constexpr size_t kCgroupsBytes = 16384;

// Reads the first kBytes - 1 bytes of a kernel file, repeatedly.
template <size_t kBytes = 2048>
class KernelFile {
 public:
  KernelFile() = default;
  explicit KernelFile(const char* path) {
    open(path);
  }
  ~KernelFile() {
    close();
  }
  KernelFile(const KernelFile&) = delete;
  KernelFile& operator=(const KernelFile&) = delete;

  bool open(const char* path) noexcept {
    close();
    fd_ = ::open(path, O_RDONLY | O_CLOEXEC);
    return fd_ >= 0;
  }
  void close() noexcept {
    if (fd_ >= 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }
  // Returns the text, valid until the next call; null if there is none.
  const char* read() noexcept {
    const ssize_t n = fd_ < 0 ? -1 : pread(fd_, text_, sizeof(text_) - 1, 0);
    if (n <= 0) {
      return nullptr;
    }
    text_[n] = '\0';
    return text_;
  }

 private:
  int fd_ = -1;
  char text_[kBytes];
};

bool numberAfter(const char* text, const char* word, uint64_t& found) noexcept {
  const char* at = std::strstr(text, word);
  if (at == nullptr) {
    return false;
  }
  found = std::strtoull(at + std::strlen(word), nullptr, 10);
  return true;
}

bool hasWord(const char* list, const char* word) noexcept {
  const size_t length = std::strlen(word);
  for (const char* at = list; (at = std::strstr(at, word)) != nullptr; ++at) {
    const bool begins = at == list || at[-1] == ',';
    if (begins && (at[length] == '\0' || at[length] == ',')) {
      return true;
    }
  }
  return false;
}

// Opens cpu.stat of the nearest cgroup with a quota, from `path` upwards.
// Without a quota, version 2 writes "max" and version 1 a negative number.
bool openNearest(
    KernelFile<>& stat,
    const char* mount,
    const char* quota_file,
    const char* path) noexcept {
  char group[1024];
  if (std::snprintf(group, sizeof(group), "%s", path) >= int(sizeof(group))) {
    return false;
  }
  KernelFile<> quota;
  for (;;) {
    char name[2048];
    std::snprintf(name, sizeof(name), "%s%s/%s", mount, group, quota_file);
    const char* quota_text = quota.open(name) ? quota.read() : nullptr;
    if (quota_text != nullptr && *quota_text >= '1' && *quota_text <= '9') {
      std::snprintf(name, sizeof(name), "%s%s/cpu.stat", mount, group);
      return stat.open(name);
    }
    char* last = std::strrchr(group, '/');
    if (last == nullptr) {
      return false;
    }
    *last = '\0';
  }
}

// A line is "id:controllers:path"; in version 2 the controllers are empty.
bool openOwn(KernelFile<>& stat) noexcept {
  KernelFile<kCgroupsBytes> file("/proc/thread-self/cgroup");
  const char* text = file.read();
  for (const char* line = text; line != nullptr && *line != '\0';) {
    char controllers[256] = "";
    char path[1024] = "";
    if (std::sscanf(line, "%*d:%255[^:]:%1023[^\n]", controllers, path) == 2) {
      if (hasWord(controllers, "cpu")) {
        char mount[320];
        std::snprintf(mount, sizeof(mount), "/sys/fs/cgroup/%s", controllers);
        if (openNearest(stat, mount, "cpu.cfs_quota_us", path)) {
          return true;
        }
      }
    } else if (
        std::sscanf(line, "0::%1023[^\n]", path) == 1 &&
        openNearest(stat, "/sys/fs/cgroup", "cpu.max", path)) {
      return true;
    }
    const char* end = std::strchr(line, '\n');
    line = end == nullptr ? nullptr : end + 1;
  }
  return false;
}

} // namespace

ThreadCounts threadCounts() noexcept {
  rusage used{};
  if (getrusage(RUSAGE_THREAD, &used) != 0) {
    return {};
  }
  return {
      uint64_t(used.ru_nivcsw),
      uint64_t(used.ru_minflt),
      uint64_t(used.ru_majflt)};
}

uint64_t throttledNs(uint64_t now_ns) noexcept {
  static thread_local KernelFile<> stat;
  static thread_local uint64_t looked_ns = 0;
  const char* text = stat.read();
  if (text == nullptr) { // no file is open yet, or its cgroup is gone
    if (looked_ns != 0 && now_ns - looked_ns < kLookAgainNs) {
      return 0;
    }
    looked_ns = now_ns;
    text = openOwn(stat) ? stat.read() : nullptr;
  }
  uint64_t found = 0;
  if (text != nullptr && numberAfter(text, "throttled_usec ", found)) {
    found *= kNsPerUs;
  } else if (text != nullptr) {
    numberAfter(text, "throttled_time ", found);
  }
  return found;
}

uint64_t memoryStallNs() noexcept {
  static thread_local KernelFile<> file("/proc/pressure/memory");
  const char* text = file.read();
  uint64_t found = 0;
  if (text != nullptr) { // the line "some" comes first
    numberAfter(text, "total=", found);
  }
  return found * kNsPerUs;
}

} // namespace commprof
