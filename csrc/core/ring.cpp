#include "core/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace commprof {

namespace {

// A mapping of `bytes` zero bytes of a new file, or MAP_FAILED. With an address
// it replaces what is mapped there.
void* mapFile(const std::string& path, size_t bytes, void* address) {
  const int fd =
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return MAP_FAILED;
  }
  const int fixed = address == nullptr ? 0 : MAP_FIXED;
  void* memory = MAP_FAILED;
  if (posix_fallocate(fd, 0, off_t(bytes)) == 0) {
    memory =
        mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, fd, 0);
  }
  close(fd);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
  }
  return memory;
}

void* mapMemory(size_t bytes, void* address) {
  const int fixed = address == nullptr ? 0 : MAP_FIXED;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | fixed;
  return mmap(address, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

} // namespace

Ring::Ring(const std::string& path, uint64_t capacity, uint64_t session)
    : header_(nullptr), capacity_(capacity), mask_(capacity - 1) {
  rebind(path, session);
}

void Ring::rebind(const std::string& path, uint64_t session) {
  unlinkFile();
  const size_t bytes = sizeof(RingHeader) + capacity_ * sizeof(Record);
  void* memory = path.empty() ? MAP_FAILED : mapFile(path, bytes, header_);
  if (memory != MAP_FAILED) {
    path_ = path;
  } else {
    memory = mapMemory(bytes, header_);
  }
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  header_ = new (memory) RingHeader{};
  header_->record_bytes = sizeof(Record);
  header_->pid = uint32_t(getpid());
  header_->capacity = capacity_;
  header_->session.store(session, std::memory_order_relaxed);
  records_ = reinterpret_cast<Record*>(
      static_cast<char*>(memory) + sizeof(RingHeader));
  // Last, so that a reader that sees the magic sees a complete header.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header_->magic, kRingMagic, sizeof(kRingMagic));
}

void Ring::unlinkFile() noexcept {
  if (!path_.empty()) {
    unlink(path_.c_str());
    path_.clear();
  }
}

} // namespace commprof
