#include "core/recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/clock.h"
#include "core/device/device_timeline.h"
#include "core/process_stops.h"

namespace commprof {

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
  const std::lock_guard<std::mutex> session(session_mutex_);
  const std::lock_guard<std::mutex> lock(mutex_);
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
  options_ = options;
  pool_.open(options.ring_prefix, capacity, options.session);
  stats_ = RecorderStats{};
  unrecorded_.store(0);
  documents_written_ = 0;
  complained_ = abandoned_ = false;
  next_look_ns_ = 0;
  stopping_ = false;
  writer_ = std::move(writer);
  beginModeLocked();
  drainLocked(); // the documents known so far
  pauses_ = PauseWatch();
  pause_records_.clear();
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
  const std::lock_guard<std::mutex> lock(mutex_);
  next_look_ns_ = 0;
  lookAfterFileLocked();
  keepSupposedPauseLocked();
  drainLocked();
  finishSummaryLocked();
  closeLocked();
}

void Recorder::closeLocked() {
  collectStatsLocked();
  stats_.records_dropped += stats_.records_unwritten;
  stats_.records_unwritten = 0;
  char json[256];
  std::snprintf(
      json,
      sizeof(json),
      "{\"records\": %llu, \"dropped\": %llu, \"end_monotonic_ns\": %llu}",
      (unsigned long long)stats_.records_written,
      (unsigned long long)stats_.records_dropped,
      (unsigned long long)nowNs());
  if (!writer_->writeBlock(BlockType::kEnd, json, std::strlen(json))) {
    complainLocked();
  }
  stats_.trace_bytes = writer_->bytesWritten();
  stats_.write_errno = writer_->error();
  writer_.reset();
  pool_.close();
  started_.store(false);
  refreshEnabled(); // a setEnabled(true) may have come in between
}

void Recorder::push(const Record& record) noexcept {
  if (Ring* ring = pool_.mine()) {
    if (ring->push(record)) {
      wake_.notify_one(); // or it fills up before the next regular drain
    }
  } else {
    countDropped();
  }
}

void Recorder::addDocument(BlockType type, const std::string& json) {
  const std::lock_guard<std::mutex> lock(mutex_);
  documents_.push_back({type, json});
  if (writer_ && !writeDocumentsLocked()) {
    complainLocked();
  }
}

void Recorder::addGroup(const GroupMembership& group, const std::string& json) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    exchange_.addGroup(group);
  }
  addDocument(BlockType::kGroup, json);
}

void Recorder::setBoard(
    std::shared_ptr<ArrivalBoard> board,
    uint32_t global_rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  exchange_.setBoard(std::move(board), global_rank);
}

void Recorder::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  next_summary_ns_ = 0;
  drainLocked();
}

// What cannot be written waits for the next try: documents here, records in
// their rings.
void Recorder::drainLocked() noexcept {
  if (!writer_) {
    return;
  }
  try {
    bool written = writeDocumentsLocked();
    if (keep_records_) {
      written = written && writeClocksLocked() && writeRecordsLocked();
    } else {
      foldRecordsLocked();
    }
    if (summary_) {
      summary_->resolve(nowNs());
    }
    if (!written || !writeSummaryLocked()) {
      complainLocked();
    }
  } catch (const std::bad_alloc&) {
  }
}

bool Recorder::writeDocumentsLocked() noexcept {
  while (documents_written_ < documents_.size()) {
    const Document& document = documents_[documents_written_];
    if (!writer_->writeJson(document.type, document.json)) {
      return false;
    }
    ++documents_written_;
  }
  return true;
}

// One block per drain: all rings' new records, ring by ring. Before them the
// pauses, which lie in steps and phases that end later.
bool Recorder::writeRecordsLocked() {
  const std::vector<Ring*> rings = pool_.rings();
  drain_buffer_ = pause_records_;
  drain_marks_.clear();
  for (const Ring* ring : rings) {
    drain_marks_.push_back(
        ring->peek([this](const Record* records, uint64_t count) {
          drain_buffer_.insert(drain_buffer_.end(), records, records + count);
        }));
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
  for (size_t i = 0; i < rings.size(); ++i) {
    rings[i]->commit(drain_marks_[i]);
  }
  pause_records_.clear();
  stats_.records_written += drain_buffer_.size();
  if (summary_) {
    summary_->fold(drain_buffer_.data(), drain_buffer_.size());
    stats_.records_summarised += drain_buffer_.size();
  }
  return true;
}

void Recorder::collectStatsLocked() {
  const std::vector<Ring*> rings = pool_.rings();
  stats_.records_dropped = unrecorded_.load();
  stats_.records_unwritten = 0;
  stats_.rings = rings.size();
  stats_.rings_in_private_memory = 0;
  for (Ring* ring : rings) {
    const RingHeader& header = ring->header();
    stats_.records_dropped += header.dropped.load();
    stats_.records_unwritten += header.head.load() - header.tail.load();
    stats_.rings_in_private_memory += ring->fileBacked() ? 0 : 1;
  }
  stats_.trace_bytes = writer_->bytesWritten();
  stats_.write_errno = writer_->error();
}

RecorderStats Recorder::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (writer_) {
    collectStatsLocked();
  }
  return stats_;
}

void Recorder::beforeFork() {
  instance().session_mutex_.lock();
  instance().mutex_.lock();
  instance().pool_.beforeFork();
}

void Recorder::afterForkParent() {
  instance().pool_.afterForkParent();
  instance().mutex_.unlock();
  instance().session_mutex_.unlock();
}

// The child has one thread and shares the parent's files: let go of all of it.
void Recorder::afterForkChild() {
  Recorder& self = instance();
  self.wanted_.store(false);
  self.started_.store(false);
  self.enabled_.store(false);
  self.summary_.reset();
  self.exchange_.setBoard(nullptr, 0);
  self.pool_.afterForkChild();
  DeviceTimeline::setMain(nullptr); // no device survives a fork
  self.options_ = RecorderOptions{};
  self.stats_ = RecorderStats{};
  (void)self.flusher_.release(); // its thread does not exist here
  self.writer_.reset();
  new (&self.wake_) std::condition_variable();
  self.mutex_.unlock();
  self.session_mutex_.unlock();
}

} // namespace commprof
