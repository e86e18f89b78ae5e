#include "core/recorder.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/clock.h"

namespace commprof {

// The calling thread's ring; handed back for reuse when the thread ends.
struct ThreadRing {
  Ring* ring = nullptr;
  uint64_t generation = 0;
  ~ThreadRing();
};

namespace {

// Changes in a forked child, where the parent's rings must not be touched.
std::atomic<uint64_t> g_generation{1};
thread_local ThreadRing t_ring;

// More threads than this record into memory bounded elsewhere: not at all.
constexpr size_t kMaxRings = 256;

} // namespace

ThreadRing::~ThreadRing() {
  if (ring != nullptr &&
      generation == g_generation.load(std::memory_order_relaxed)) {
    Recorder::instance().releaseRing(ring);
  }
}

Recorder& Recorder::instance() {
  static Recorder* recorder = new Recorder();
  return *recorder;
}

Recorder::Recorder() {
  pthread_atfork(&beforeFork, &afterForkParent, &afterForkChild);
}

uint32_t Recorder::threadId() noexcept {
  static thread_local const uint32_t id = uint32_t(syscall(SYS_gettid));
  return id;
}

void Recorder::start(const RecorderOptions& options) {
  const uint64_t capacity = options.ring_capacity;
  if (capacity < 2 || (capacity & (capacity - 1)) != 0) {
    throw std::invalid_argument("ring_capacity must be a power of two");
  }
  if (options.session == 0 || options.flush_interval_ms == 0) {
    throw std::invalid_argument("session and flush_interval_ms must not be 0");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (started()) {
    throw std::logic_error("capture is already running in this process");
  }
  auto writer =
      std::make_unique<TraceWriter>(options.trace_path, options.session);
  if (!writer->writeJson(BlockType::kMetadata, options.metadata_json)) {
    throw std::system_error(
        writer->error(), std::generic_category(), options.trace_path);
  }
  options_ = options;
  for (size_t i = 0; i < rings_.size(); ++i) {
    rings_[i]->rebind(ringPath(i), options.session);
  }
  records_written_ = 0;
  unrecorded_.store(0);
  writer_ = std::move(writer);
  for (const std::string& group : groups_) {
    writer_->writeJson(BlockType::kGroup, group);
  }
  stopping_ = false;
  // Signals belong to the user's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  flusher_ = std::make_unique<std::thread>([this] { flusherLoop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started_.store(true);
  enabled_.store(true);
}

void Recorder::stop() {
  enabled_.store(false);
  std::unique_ptr<std::thread> flusher;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!started()) {
      return;
    }
    stopping_ = true;
    flusher = std::move(flusher_);
  }
  wake_.notify_all();
  if (flusher) {
    flusher->join();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  drainLocked();
  RecorderStats stats;
  collectStatsLocked(stats);
  char json[256];
  std::snprintf(
      json,
      sizeof(json),
      "{\"records\": %llu, \"dropped\": %llu, \"end_monotonic_ns\": %llu}",
      (unsigned long long)stats.records_written,
      (unsigned long long)stats.records_dropped,
      (unsigned long long)nowNs());
  writer_->writeJson(BlockType::kEnd, json);
  writer_.reset();
  for (Ring* ring : rings_) {
    ring->unlinkFile();
  }
  started_.store(false);
}

void Recorder::setEnabled(bool on) noexcept {
  enabled_.store(on && started(), std::memory_order_relaxed);
}

void Recorder::push(const Record& record) noexcept {
  ThreadRing& mine = t_ring;
  if (mine.ring == nullptr ||
      mine.generation != g_generation.load(std::memory_order_relaxed)) {
    mine.ring = acquireRing();
    mine.generation = g_generation.load(std::memory_order_relaxed);
    if (mine.ring == nullptr) {
      unrecorded_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  mine.ring->push(record);
}

Ring* Recorder::acquireRing() noexcept {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_rings_.empty()) {
      Ring* ring = free_rings_.back();
      free_rings_.pop_back();
      return ring;
    }
    if (rings_.size() >= kMaxRings || !started()) {
      return nullptr;
    }
    Ring* ring = new Ring(
        ringPath(rings_.size()), options_.ring_capacity, options_.session);
    rings_.push_back(ring);
    return ring;
  } catch (...) {
    return nullptr;
  }
}

std::string Recorder::ringPath(size_t index) const {
  const std::string& prefix = options_.ring_prefix;
  return prefix.empty() ? "" : prefix + std::to_string(index) + ".ring";
}

void Recorder::releaseRing(Ring* ring) noexcept {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    free_rings_.push_back(ring);
  } catch (...) {
    // Out of memory at a thread's end: the ring stays unused.
  }
}

void Recorder::addGroup(const std::string& json) {
  std::lock_guard<std::mutex> lock(mutex_);
  groups_.push_back(json);
  if (writer_) {
    writer_->writeJson(BlockType::kGroup, json);
  }
}

void Recorder::flush() {
  std::lock_guard<std::mutex> lock(mutex_);
  drainLocked();
}

// One block per drain: all rings' new records, ring by ring. What cannot be
// written stays in the rings for the next try.
void Recorder::drainLocked() {
  if (!writer_) {
    return;
  }
  drain_buffer_.clear();
  drain_marks_.clear();
  for (Ring* ring : rings_) {
    drain_marks_.push_back(
        ring->peek([this](const Record* records, uint64_t count) {
          drain_buffer_.insert(drain_buffer_.end(), records, records + count);
        }));
  }
  if (drain_buffer_.empty()) {
    return;
  }
  const bool had_error = writer_->error() != 0;
  if (writer_->writeBlock(
          BlockType::kRecords,
          drain_buffer_.data(),
          drain_buffer_.size() * sizeof(Record))) {
    for (size_t i = 0; i < rings_.size(); ++i) {
      rings_[i]->commit(drain_marks_[i]);
    }
    records_written_ += drain_buffer_.size();
  } else if (!had_error) {
    std::fprintf(
        stderr,
        "commprof: cannot write %s: %s. Training goes on; the newest records "
        "wait in memory, and what does not fit is counted as dropped.\n",
        options_.trace_path.c_str(),
        std::strerror(writer_->error()));
  }
}

void Recorder::collectStatsLocked(RecorderStats& stats) {
  stats.records_written = records_written_;
  stats.records_dropped = unrecorded_.load();
  stats.rings = rings_.size();
  for (Ring* ring : rings_) {
    RingHeader& header = ring->header();
    stats.records_dropped += header.dropped.load();
    stats.records_unwritten += header.head.load() - header.tail.load();
    stats.rings_in_private_memory += ring->fileBacked() ? 0 : 1;
  }
  if (writer_) {
    stats.trace_bytes = writer_->bytesWritten();
    stats.write_errno = writer_->error();
  }
}

RecorderStats Recorder::stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  RecorderStats stats;
  collectStatsLocked(stats);
  return stats;
}

void Recorder::flusherLoop() {
  pthread_setname_np(pthread_self(), "commprof-flush");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, std::chrono::milliseconds(options_.flush_interval_ms));
    drainLocked();
  }
}

void Recorder::beforeFork() {
  instance().mutex_.lock();
}

void Recorder::afterForkParent() {
  instance().mutex_.unlock();
}

// The child has one thread and shares the parent's files: let go of all of it.
void Recorder::afterForkChild() {
  Recorder& self = instance();
  self.enabled_.store(false);
  self.started_.store(false);
  g_generation.fetch_add(1);
  self.rings_.clear();
  self.free_rings_.clear();
  self.options_ = RecorderOptions{};
  (void)self.flusher_.release(); // its thread does not exist here
  self.writer_.reset();
  new (&self.wake_) std::condition_variable();
  self.mutex_.unlock();
}

} // namespace commprof
