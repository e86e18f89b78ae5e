#include "core/ring_pool.h"

#include <exception>

namespace commprof {

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
  // So that a thread's end needs no memory.
  rings_.reserve(kMaxRings);
  free_.reserve(kMaxRings);
  prefix_ = prefix;
  capacity_ = capacity;
  session_ = session;
  for (size_t i = 0; i < rings_.size(); ++i) {
    rings_[i]->rebind(path(i), session);
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
    rings_.push_back(new Ring(path(rings_.size()), capacity_, session_));
    return rings_.back();
  } catch (const std::exception&) {
    return nullptr;
  }
}

void RingPool::takeBack(Ring* ring) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(ring); // reserved by open()
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
