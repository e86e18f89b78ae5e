#include "core/recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/clock.h"
#include "core/process/process_stops.h"
#include "device/device_timeline.h"

namespace commprof {

Recorder& Recorder::instance() {
  static Recorder* recorder = new Recorder();
  return *recorder;
}

Recorder::Recorder() {
  pthread_atfork(&beforeFork, &afterForkParent, &afterForkChild);
}

namespace {

thread_local uint32_t t_thread_id = 0; // 0: not queried yet

} // namespace

uint32_t Recorder::threadId() noexcept {
  if (t_thread_id == 0) {
    t_thread_id = uint32_t(syscall(SYS_gettid));
  }
  return t_thread_id;
}

void Recorder::start(const RecorderOptions& options) {
  const uint64_t capacity = options.ring_capacity;
  if (capacity < 2 || (capacity & (capacity - 1)) != 0) {
    throw std::invalid_argument(
        "ring_capacity=" + std::to_string(capacity) +
        " is out of range (allowed: 2, 4, 8 and further powers of two)");
  }
  if (options.session == 0 || options.flush_interval_ms == 0) {
    throw std::invalid_argument("session and flush_interval_ms must not be 0");
  }
  const std::lock_guard<std::mutex> session(session_mutex_);
  const std::lock_guard<std::mutex> drain(drain_mutex_);
  if (started()) {
    throw std::logic_error("capture is already running in this process");
  }
  auto writer =
      std::make_unique<TraceWriter>(options.trace_path, options.session);
  if (!writer->writeJson(BlockType::kMetadata, options.metadata_json) ||
      !writer->reserveNote()) {
    throw std::system_error(
        writer->error(), std::generic_category(), options.trace_path);
  }
  pool_.open(options.ring_prefix, capacity, options.session);
  unrecorded_.store(0);
  drained_ = RecorderStats{};
  taken_.clear();
  documents_taken_ = 0;
  pauses_taken_.reset();
  pauses_drained_.clear();
  write_error_reported_ = abandoned_ = off_written_ = private_rings_written_ =
      false;
  next_file_check_ns_ = off_since_ns_ = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    options_ = options;
    stats_ = RecorderStats{};
    open_ = true;
    stopping_ = pauses_changed_ = false;
    pauses_ = PauseWatch();
    pause_records_.clear();
  }
  writer_ = std::move(writer);
  beginModeLocked();
  drainLocked(); // writes the documents that were added before
  watchStops([](uint64_t begin_ns, uint64_t end_ns) {
    instance().takePause({begin_ns, end_ns});
  });
  startFlusherLocked();
  wanted_.store(true);
  started_.store(true);
  refreshEnabled();
}

void Recorder::stop() {
  wanted_.store(false);
  refreshEnabled();
  const std::lock_guard<std::mutex> session(session_mutex_);
  if (!started()) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  flusher_->join();
  flusher_.reset();
  awaitArrivals();
  const std::lock_guard<std::mutex> drain(drain_mutex_);
  next_file_check_ns_ = 0;
  restoreIfRemovedLocked();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    keepSupposedPause();
  }
  drainLocked();
  finishSummaryLocked();
  closeLocked();
}

void Recorder::closeLocked() {
  RecorderStats last = stats();
  last.records_dropped += last.records_unwritten;
  last.records_unwritten = 0;
  char json[256];
  std::snprintf(
      json,
      sizeof(json),
      "{\"records\": %llu, \"dropped\": %llu, \"end_monotonic_ns\": %llu}",
      (unsigned long long)last.records_written,
      (unsigned long long)last.records_dropped,
      (unsigned long long)nowNs());
  if (!writer_->writeBlock(BlockType::kEnd, json, std::strlen(json))) {
    reportWriteErrorLocked();
  }
  last.trace_bytes = writer_->bytesWritten();
  last.write_errno = writer_->error();
  writer_.reset();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats_ = last;
    open_ = false;
  }
  pool_.close();
  started_.store(false);
  refreshEnabled(); // another thread may have called setEnabled(true)
}

void Recorder::push(const Record& record) noexcept {
  if (Ring* ring = pool_.mine()) {
    if (ring->push(record)) {
      wake_.notify_one(); // the ring may be full before the next regular drain
    }
  } else {
    countDropped();
  }
}

void Recorder::queueDocument(Document document) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    document.number = documents_added_ + 1;
    documents_.push_back(std::move(document));
    ++documents_added_;
    drain_requested_ = true;
  }
  wake_.notify_one();
}

void Recorder::addDocument(BlockType type, const std::string& json) {
  queueDocument({0, type, json, std::nullopt});
}

void Recorder::addGroup(const GroupMembership& group, const std::string& json) {
  queueDocument({0, BlockType::kGroup, json, group});
}

void Recorder::setBoard(
    std::shared_ptr<ArrivalBoard> board,
    uint32_t global_rank) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    board_ = std::move(board);
    global_rank_ = global_rank;
    board_changed_ = true;
  }
  // If a drain is running, the next drain uses the board.
  const std::unique_lock<std::mutex> drain(drain_mutex_, std::try_to_lock);
  if (drain) {
    takeRequestsLocked();
  }
}

void Recorder::flush() {
  const std::lock_guard<std::mutex> drain(drain_mutex_);
  next_summary_ns_ = 0;
  drainLocked();
}

// Documents and records that cannot be written are kept for the next drain:
// documents in taken_, records in their rings.
void Recorder::drainLocked() noexcept {
  if (!writer_) {
    return;
  }
  try {
    markRingsLocked();
    takeRequestsLocked();
    bool written = writePausesLocked() && writeDocumentsLocked() &&
        writePrivateRingsLocked() && writeRecordingLocked();
    if (keep_records_) {
      written = written && writeClocksLocked() && writeRecordsLocked();
    } else {
      foldRecordsLocked();
    }
    if (summary_) {
      summary_->resolve(nowNs());
    }
    if (!written || !writeSummaryLocked()) {
      reportWriteErrorLocked();
    }
  } catch (const std::bad_alloc&) {
  }
  publishLocked();
}

// Sets marks_. Call it before takeRequestsLocked(): a group is added before its
// first record is pushed, so takeRequestsLocked() then takes the groups of all
// marked records.
void Recorder::markRingsLocked() {
  marks_.clear();
  for (Ring* ring : pool_.rings()) {
    marks_.emplace_back(ring, ring->pushed());
  }
}

void Recorder::takeRequestsLocked() {
  const std::lock_guard<std::mutex> lock(mutex_);
  drain_requested_ = false;
  if (board_changed_) {
    exchange_.setBoard(board_, global_rank_);
    board_changed_ = false;
  }
  const uint64_t known = std::min(documents_taken_, groups_taken_);
  const auto first = std::partition_point(
      documents_.begin(), documents_.end(), [known](const Document& one) {
        return one.number <= known;
      });
  for (auto one = first; one != documents_.end(); ++one) {
    if (one->number > groups_taken_ && one->group) {
      exchange_.addGroup(*one->group);
    }
    groups_taken_ = std::max(groups_taken_, one->number);
    if (one->number > documents_taken_ && writer_) {
      taken_.push_back(*one);
      documents_taken_ = one->number;
    }
  }
  if (std::exchange(pauses_changed_, false)) {
    pauses_taken_ = pauses_.found();
  }
  if (pauses_drained_.empty()) {
    pauses_drained_.swap(pause_records_);
  }
}

bool Recorder::writeDocumentsLocked() noexcept {
  for (; !taken_.empty(); taken_.pop_front()) {
    if (!writer_->writeJson(taken_.front().type, taken_.front().json)) {
      return false;
    }
  }
  return true;
}

// Writes one block: first the pauses, then the new records of each ring. Pauses
// come first because they lie in steps and phases that end later.
bool Recorder::writeRecordsLocked() {
  drain_buffer_ = pauses_drained_;
  for (const auto& [ring, until] : marks_) {
    ring->peek(
        [this](const Record* records, uint64_t count) {
          drain_buffer_.insert(drain_buffer_.end(), records, records + count);
        },
        until);
  }
  if (drain_buffer_.empty()) {
    return true;
  }
  if (!writer_->writeBlock(
          BlockType::kRecords,
          drain_buffer_.data(),
          drain_buffer_.size() * sizeof(Record))) {
    return false;
  }
  for (const auto& [ring, until] : marks_) {
    ring->commit(until);
  }
  pauses_drained_.clear();
  drained_.records_written += drain_buffer_.size();
  if (summary_) {
    summary_->fold(drain_buffer_.data(), drain_buffer_.size());
    drained_.records_summarised += drain_buffer_.size();
  }
  return true;
}

void Recorder::publishLocked() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.records_written = drained_.records_written;
  stats_.records_summarised = drained_.records_summarised;
  stats_.signal_taken = drained_.signal_taken;
  stats_.trace_bytes = writer_->bytesWritten();
  stats_.write_errno = writer_->error();
}

RecorderStats Recorder::statsNow() {
  RecorderStats now = stats_;
  const std::vector<Ring*> rings = pool_.rings();
  now.records_dropped = unrecorded_.load();
  now.records_unwritten = 0;
  now.rings = rings.size();
  now.rings_in_private_memory = 0;
  for (Ring* ring : rings) {
    const RingHeader& header = ring->header();
    now.records_dropped += header.dropped.load();
    now.records_unwritten += header.head.load() - header.tail.load();
    now.rings_in_private_memory += ring->fileBacked() ? 0 : 1;
  }
  return now;
}

RecorderStats Recorder::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return open_ ? statsNow() : stats_;
}

// Does not wait until another thread has finished a drain, start() or stop().
// The child discards the state that such a thread was changing.
void Recorder::beforeFork() {
  Recorder& self = instance();
  const bool has_session = self.session_mutex_.try_lock();
  const bool has_drain = self.drain_mutex_.try_lock();
  self.mutex_.lock();
  self.pool_.beforeFork();
  self.forker_has_session_ = has_session;
  self.forker_has_drain_ = has_drain;
}

void Recorder::afterForkParent() {
  Recorder& self = instance();
  const bool has_session = self.forker_has_session_;
  const bool has_drain = self.forker_has_drain_;
  self.pool_.afterForkParent();
  self.mutex_.unlock();
  if (has_drain) {
    self.drain_mutex_.unlock();
  }
  if (has_session) {
    self.session_mutex_.unlock();
  }
}

namespace {

// Constructs a new object in place, and does not destroy the old object: a
// thread of the parent may have been changing it during the fork.
template <class T>
void renew(T& object) noexcept {
  new (&object) T();
}

} // namespace

void Recorder::forgetDrain() noexcept {
  if (forker_has_drain_) {
    summary_.reset();
    writer_.reset();
    exchange_.setBoard(nullptr, 0);
    drain_mutex_.unlock();
    return;
  }
  renew(summary_);
  renew(writer_); // leaves the old writer's descriptor open
  renew(exchange_);
  groups_taken_ = 0;
  renew(taken_);
  renew(pauses_taken_);
  renew(pauses_drained_);
  renew(marks_);
  renew(drain_buffer_);
  renew(clocks_);
  renew(drain_mutex_);
}

// The child has only the forking thread. This handler releases everything that
// the child shares with the parent, such as open files.
void Recorder::afterForkChild() {
  Recorder& self = instance();
  t_thread_id = 0; // the child's thread has another id
  self.wanted_.store(false);
  self.started_.store(false);
  self.enabled_.store(false);
  self.open_ = false;
  self.board_.reset();
  self.board_changed_ = false;
  self.pool_.afterForkChild();
  DeviceTimeline::setMain(nullptr); // no device survives a fork
  self.options_ = RecorderOptions{};
  self.stats_ = RecorderStats{};
  (void)self.flusher_.release(); // the flusher's thread does not exist here
  self.forgetDrain();
  renew(self.wake_);
  self.mutex_.unlock();
  if (self.forker_has_session_) {
    self.session_mutex_.unlock();
  } else {
    renew(self.session_mutex_);
  }
}

} // namespace commprof
