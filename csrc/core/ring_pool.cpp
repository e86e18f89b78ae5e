#include "core/ring_pool.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <exception>

namespace commprof {

namespace {

// One file takes at most 1 / kRingShare of the free space of its file system.
// All files of a process take at most 1 / kProcessShare. So a container's
// default of 64 MiB for /dev/shm is enough for 8 ranks.
constexpr uint64_t kRingShare = 64;
constexpr uint64_t kProcessShare = 32;
// A smaller ring would be full before it is drained.
constexpr uint64_t kLeastCapacity = 1024;

} // namespace

constinit thread_local RingPool::Lent RingPool::t_lent{};
thread_local RingPool::Return RingPool::t_return;

RingPool::Return::~Return() {
  const Lent lent = t_lent;
  t_lent.ring = nullptr;
  t_lent.thread_ended = true;
  if (lent.ring != nullptr && lent.generation == pool->generation_.load()) {
    pool->takeBack(lent.ring);
  }
}

void RingPool::open(
    const std::string& prefix,
    uint64_t capacity,
    uint64_t session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Reserved now, because takeBack() must not allocate.
  rings_.reserve(kMaxRings);
  free_.reserve(kMaxRings);
  prefix_ = prefix;
  capacity_ = capacity;
  session_ = session;
  for (size_t i = 0; i < rings_.size(); ++i) {
    const bool fits = rings_[i]->bytes() <= roomLocked();
    rings_[i]->rebind(fits ? path(i) : "", session);
  }
  supply_.fetch_add(1);
}

void RingPool::close() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  session_ = 0;
  for (Ring* ring : rings_) {
    ring->unlinkFile();
  }
}

std::vector<Ring*> RingPool::rings() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rings_;
}

Ring* RingPool::lend() noexcept {
  const uint64_t supply = supply_.load();
  if (t_lent.thread_ended || t_lent.refused_at == supply) {
    return nullptr;
  }
  t_return.pool = this;
  const std::lock_guard<std::mutex> lock(mutex_);
  t_lent.ring = freeOrNewLocked();
  t_lent.generation = generation_.load();
  t_lent.refused_at = t_lent.ring == nullptr ? supply : 0;
  return t_lent.ring;
}

Ring* RingPool::freeOrNewLocked() noexcept {
  if (!free_.empty()) {
    Ring* ring = free_.back();
    free_.pop_back();
    return ring;
  }
  if (session_ == 0 || rings_.size() == kMaxRings) {
    return nullptr;
  }
  try {
    const uint64_t capacity = capacityForLocked(roomLocked());
    const std::string file = capacity == 0 ? "" : path(rings_.size());
    rings_.push_back(
        new Ring(file, capacity == 0 ? capacity_ : capacity, session_));
    return rings_.back();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Returns the largest size of the next file, in bytes.
uint64_t RingPool::roomLocked() const noexcept {
  struct statvfs found;
  const size_t slash = prefix_.rfind('/');
  try {
    const std::string directory =
        slash == std::string::npos ? "." : prefix_.substr(0, slash + 1);
    if (prefix_.empty() || statvfs(directory.c_str(), &found) != 0) {
      return 0;
    }
  } catch (const std::bad_alloc&) {
    return 0;
  }
  if (found.f_blocks == 0) { // a tmpfs without a limit
    return UINT64_MAX;
  }
  uint64_t taken = 0;
  for (const Ring* ring : rings_) {
    taken += ring->fileBacked() ? ring->bytes() : 0;
  }
  const uint64_t free = uint64_t(found.f_bavail) * found.f_frsize;
  const uint64_t own = (free + taken) / kProcessShare;
  return std::min(free / kRingShare, own - std::min(own, taken));
}

// Returns the capacity of a ring whose file fits; 0 if no file fits.
uint64_t RingPool::capacityForLocked(uint64_t room) const noexcept {
  const uint64_t least = std::min(capacity_, kLeastCapacity);
  uint64_t capacity = capacity_;
  while (Ring::bytes(capacity) > room && capacity > least) {
    capacity /= 2;
  }
  return Ring::bytes(capacity) <= room ? capacity : 0;
}

void RingPool::takeBack(Ring* ring) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(ring); // open() has reserved the memory
  supply_.fetch_add(1);
}

std::string RingPool::path(size_t index) const {
  return prefix_.empty() ? "" : prefix_ + std::to_string(index) + ".ring";
}

void RingPool::beforeFork() noexcept {
  mutex_.lock();
}

void RingPool::afterForkParent() noexcept {
  mutex_.unlock();
}

void RingPool::afterForkChild() noexcept {
  generation_.fetch_add(1);
  session_ = 0;
  rings_.clear();
  free_.clear();
  mutex_.unlock();
}

} // namespace commprof
