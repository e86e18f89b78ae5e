#include "core/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

namespace commprof {

namespace {

// Maps `bytes` zero bytes of a new file. Returns MAP_FAILED on failure.
void* mapFile(const std::string& path, size_t bytes) noexcept {
  const int fd =
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return MAP_FAILED;
  }
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, off_t(bytes));
  } while (error == EINTR); // a signal does not mean a full disk
  void* memory = MAP_FAILED;
  if (error == 0) {
    // MAP_POPULATE fills the page tables now, so that push() causes no page
    // faults.
    const int flags = MAP_SHARED | MAP_POPULATE;
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  }
  close(fd);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
  }
  return memory;
}

void* mapMemory(size_t bytes) noexcept {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

} // namespace

Ring::Ring(const std::string& path, uint64_t capacity, uint64_t session)
    : capacity_(capacity),
      mask_(capacity - 1),
      look_mask_(std::clamp<uint64_t>(capacity / 4, 256, 1024) - 1),
      path_(path) {
  void* memory = map(session, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  header_ = static_cast<RingHeader*>(memory);
  records_ = reinterpret_cast<Record*>(header_ + 1);
}

// Maps an empty ring at path_. If that fails, clears path_ and uses private
// memory. Returns MAP_FAILED if there is no memory.
void* Ring::map(uint64_t session, uint64_t position) noexcept {
  void* memory = path_.empty() ? MAP_FAILED : mapFile(path_, bytes());
  if (memory == MAP_FAILED) {
    path_.clear();
    memory = mapMemory(bytes());
  }
  if (memory == MAP_FAILED) {
    return MAP_FAILED;
  }
  auto* header = new (memory) RingHeader{};
  header->record_bytes = sizeof(Record);
  header->pid = uint32_t(getpid());
  header->capacity = capacity_;
  header->session.store(session, std::memory_order_relaxed);
  header->head.store(position, std::memory_order_relaxed);
  header->tail.store(position, std::memory_order_relaxed);
  header->magic.store(kRingMagic, std::memory_order_release);
  return memory;
}

void Ring::rebind(const std::string& path, uint64_t session) noexcept {
  unlinkFile();
  try {
    path_ = path;
  } catch (const std::bad_alloc&) {
    path_.clear();
  }
  const uint64_t position = header_->head.load(std::memory_order_acquire);
  // The new ring is mapped elsewhere and then moved in one step, so that the
  // owning thread never sees an incomplete ring.
  void* memory = map(session, position);
  if (memory != MAP_FAILED &&
      mremap(
          memory, bytes(), bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, header_) !=
          MAP_FAILED) {
    return;
  }
  if (memory != MAP_FAILED) {
    munmap(memory, bytes());
  }
  unlinkFile();
  header_->session.store(session, std::memory_order_relaxed);
  header_->dropped.store(0, std::memory_order_relaxed);
  header_->tail.store(position, std::memory_order_release);
}

void Ring::unlinkFile() noexcept {
  if (!path_.empty()) {
    unlink(path_.c_str());
    path_.clear();
  }
}

} // namespace commprof
