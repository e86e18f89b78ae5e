#include "core/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace commprof {

namespace {

// A mapping of `bytes` zero bytes in a new file, or MAP_FAILED.
void* mapFile(const std::string& path, size_t bytes) {
  const int fd =
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return MAP_FAILED;
  }
  void* memory = MAP_FAILED;
  if (posix_fallocate(fd, 0, off_t(bytes)) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
  }
  return memory;
}

} // namespace

Ring::Ring(const std::string& path, uint64_t capacity, uint64_t session)
    : capacity_(capacity), mask_(capacity - 1) {
  const size_t bytes = sizeof(RingHeader) + capacity * sizeof(Record);
  void* memory = path.empty() ? MAP_FAILED : mapFile(path, bytes);
  file_backed_ = memory != MAP_FAILED;
  if (!file_backed_) {
    memory = mmap(
        nullptr,
        bytes,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0);
  }
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  header_ = new (memory) RingHeader{};
  header_->record_bytes = sizeof(Record);
  header_->pid = uint32_t(getpid());
  header_->capacity = capacity;
  header_->session.store(session, std::memory_order_relaxed);
  records_ = reinterpret_cast<Record*>(
      static_cast<char*>(memory) + sizeof(RingHeader));
  // Last, so that a reader that sees the magic sees a complete header.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header_->magic, kRingMagic, sizeof(kRingMagic));
}

} // namespace commprof
