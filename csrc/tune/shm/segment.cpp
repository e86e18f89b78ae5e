#include "tune/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace commprof::shm {

namespace {

[[noreturn]] void fail(
    const std::string& what,
    const std::string& name,
    size_t bytes,
    int error) {
  std::string hint;
  if (error == ENOSPC) {
    hint =
        "; /dev/shm is too small: enlarge it (in a container: docker run "
        "--shm-size)";
  }
  throw SegmentError(
      what + " " + std::to_string(bytes) + " bytes of shared memory " + name +
      ": " + std::strerror(error) + hint);
}

struct File {
  ~File() {
    close(fd);
  }
  const int fd;
};

void reserve(
    int fd,
    const std::string& name,
    std::span<const Segment::Range> own) {
  for (const Segment::Range& range : own) {
    const size_t bytes = range.end - range.begin;
    int error = 0;
    do {
      error = bytes == 0
          ? 0
          : posix_fallocate(fd, off_t(range.begin), off_t(bytes));
    } while (error == EINTR);
    if (error != 0) {
      fail("cannot reserve", name, bytes, error);
    }
  }
}

std::byte* map(int fd, const std::string& name, size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    fail("cannot map", name, bytes, errno);
  }
  // The memory is not inherited by forked children, which are not ranks.
  madvise(memory, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(memory);
}

} // namespace

std::string Segment::randomName() {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != ssize_t(sizeof random)) {
    throw SegmentError(
        "the system gave no random bytes for the name of shared memory");
  }
  std::string name = "/commprof-shm-";
  for (const unsigned char byte : random) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", byte);
    name += text;
  }
  return name;
}

Segment Segment::create(
    const std::string& name,
    size_t bytes,
    std::span<const Range> own) {
  const File file{shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)};
  if (file.fd < 0) {
    fail("cannot create", name, bytes, errno);
  }
  try {
    if (ftruncate(file.fd, off_t(bytes)) != 0) {
      fail("cannot reserve", name, bytes, errno);
    }
    reserve(file.fd, name, own);
    return Segment(name, map(file.fd, name, bytes), bytes, true);
  } catch (const SegmentError&) {
    shm_unlink(name.c_str());
    throw;
  }
}

Segment Segment::open(
    const std::string& name,
    size_t bytes,
    std::span<const Range> own) {
  const File file{shm_open(name.c_str(), O_RDWR, 0)};
  if (file.fd < 0) {
    fail("cannot open", name, bytes, errno);
  }
  struct stat status{};
  if (fstat(file.fd, &status) != 0 || size_t(status.st_size) != bytes) {
    throw SegmentError(
        "shared memory " + name + " has " + std::to_string(status.st_size) +
        " bytes where this rank expects " + std::to_string(bytes) +
        "; do all ranks run the same version of commprof?");
  }
  reserve(file.fd, name, own);
  return Segment(name, map(file.fd, name, bytes), bytes, false);
}

Segment Segment::alias(const Segment& other) {
  Segment out(other.name_, other.data_, other.bytes_, false);
  out.mapped_ = false;
  return out;
}

Segment::Segment(Segment&& other) noexcept
    : name_(std::move(other.name_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      owner_(std::exchange(other.owner_, false)),
      mapped_(std::exchange(other.mapped_, false)),
      pid_(other.pid_) {}

Segment::~Segment() {
  if (getpid() != pid_) {
    // A forked child may use these addresses for other memory.
    return;
  }
  unlinkName();
  if (mapped_) {
    munmap(data_, bytes_);
  }
}

void Segment::populate() noexcept {
  constexpr int kPopulateWrite = 23; // MADV_POPULATE_WRITE
  madvise(data_, bytes_, kPopulateWrite);
}

void Segment::unlinkName() noexcept {
  if (owner_) {
    shm_unlink(name_.c_str());
    owner_ = false;
  }
}

} // namespace commprof::shm
