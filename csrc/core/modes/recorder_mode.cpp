// The recorder's helper thread, and its handling of records in each mode.
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>

#include "always_on/summary/summary.h"
#include "base/clock.h"
#include "core/recorder.h"

namespace commprof {

namespace {

constexpr size_t kClocksKept = 64;
// A script may switch recording off and on in every step. To save disk space, a
// break is written only once it has lasted this long. A monitor waits longer
// than this before it reports a hang.
constexpr uint64_t kReportOffAfterNs = 500'000'000;
// Longest wait for the other ranks' last arrivals when capture stops. Those
// ranks stop at about the same time, or drain within their flush interval.
constexpr uint64_t kLastArrivalsNs = 300'000'000;
constexpr auto kLastArrivalsPoll = std::chrono::milliseconds(2);

} // namespace

void Recorder::startFlusherLocked() {
  // Signals belong to the user's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    flusher_ = std::make_unique<std::thread>([this] { flusherLoop(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    writer_.reset();
    pool_.close();
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Recorder::flusherLoop() {
  pthread_setname_np(pthread_self(), "commprof-flush");
  const auto interval = std::chrono::milliseconds(options_.flush_interval_ms);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    pauses_.beginSleep(std::chrono::nanoseconds(interval).count());
    if (!drain_requested_) {
      wake_.wait_for(lock, interval);
    }
    // Keeps the pause, if any, that the previous endSleep() inferred. An
    // observed stop at that time would have replaced this pause by now.
    keepSupposedPause();
    pauses_.endSleep();
    lock.unlock(); // the files may be on a slow disk
    {
      const std::lock_guard<std::mutex> drain(drain_mutex_);
      restoreIfRemovedLocked();
      drainLocked();
    }
    const std::optional<Mode> asked = switch_.poll(mode());
    if (asked && *asked != mode()) {
      setMode(*asked);
    }
    lock.lock();
  }
}

void Recorder::beginModeLocked() {
  summary_.reset();
  summaries_ = 0;
  switch_.watch(options_.control_path);
  mode_.store(switch_.poll(options_.mode).value_or(options_.mode));
  keep_records_ = mode() == Mode::kFull;
  clocks_.clear();
  if (mode() == Mode::kAlwaysOn) {
    summary_ = std::make_unique<Summary>(nowNs(), exchange_);
    next_summary_ns_ = 0;
  }
  drained_.signal_taken = options_.switch_signal != 0 &&
      !ModeSwitch::countSignals(options_.switch_signal);
}

void Recorder::setEnabled(bool on) noexcept {
  wanted_.store(on && started());
  refreshEnabled();
}

// If two threads call this at the same time, the thread that stores last checks
// again.
void Recorder::refreshEnabled() noexcept {
  bool on = false;
  do {
    on = wanted_.load() && started_.load() && mode_.load() != Mode::kOff;
    enabled_.store(on);
  } while (on !=
           (wanted_.load() && started_.load() && mode_.load() != Mode::kOff));
}

// Writes whether recording is on, so that a monitor does not take this rank's
// silence for a hang. Call it before writing records from after the change.
bool Recorder::writeRecordingLocked() noexcept {
  const uint64_t now_ns = nowNs();
  if (enabled()) {
    off_since_ns_ = 0;
  } else if (off_since_ns_ == 0) {
    off_since_ns_ = now_ns;
  }
  const bool off =
      off_since_ns_ != 0 && now_ns - off_since_ns_ >= kReportOffAfterNs;
  if (off == off_written_) {
    return true;
  }
  char json[128];
  const int length = std::snprintf(
      json,
      sizeof(json),
      "{\"capture_state\": {\"recording\": %s, \"monotonic_ns\": %" PRIu64 "}}",
      off ? "false" : "true",
      off ? off_since_ns_ : now_ns);
  if (!writer_->writeBlock(BlockType::kMetadata, json, size_t(length))) {
    return false;
  }
  off_written_ = off;
  return true;
}

void Recorder::setMode(Mode mode) {
  const std::lock_guard<std::mutex> drain(drain_mutex_);
  if (writer_) {
    setModeLocked(mode);
  }
}

void Recorder::setModeLocked(Mode mode) noexcept {
  drainLocked();
  if (mode == Mode::kAlwaysOn && !summary_) {
    try {
      summary_ = std::make_unique<Summary>(nowNs(), exchange_);
    } catch (const std::bad_alloc&) {
      return; // the mode does not change
    }
  }
  if (summary_ && mode_.load() == Mode::kOff) {
    summary_->forgetOpenStep();
  }
  mode_.store(mode);
  refreshEnabled();
  drainLocked(); // records pushed meanwhile, still in the earlier mode
  if (keep_records_ && mode != Mode::kFull) {
    // Records that a full disk has left in the rings will not be written any
    // more.
    for (const auto& [ring, until] : marks_) {
      countDropped(until - ring->header().tail.load());
    }
  }
  keep_records_ = mode == Mode::kFull;
  next_summary_ns_ = 0; // a summary names the mode, so a new summary is due
  drainLocked();
}

// The records stay in the rings until they are in the summary.
void Recorder::foldRecordsLocked() {
  if (summary_) {
    summary_->fold(pauses_drained_.data(), pauses_drained_.size());
    drained_.records_summarised += pauses_drained_.size();
  }
  pauses_drained_.clear();
  for (const auto& [ring, until] : marks_) {
    ring->peek(
        [this](const Record* records, uint64_t count) {
          if (summary_) {
            summary_->fold(records, count);
            drained_.records_summarised += count;
          }
          keepClocksLocked(records, count);
        },
        until);
    ring->commit(until);
  }
}

void Recorder::keepClocksLocked(const Record* records, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if (records[i].kind == Kind::kClock) {
      clocks_.push_back(records[i]);
    }
  }
  while (clocks_.size() > kClocksKept) {
    clocks_.pop_front();
  }
}

bool Recorder::writeClocksLocked() {
  if (clocks_.empty()) {
    return true;
  }
  const std::vector<Record> records(clocks_.begin(), clocks_.end());
  if (!writer_->writeBlock(
          BlockType::kRecords,
          records.data(),
          records.size() * sizeof(Record))) {
    return false;
  }
  drained_.records_written += records.size();
  clocks_.clear();
  return true;
}

void Recorder::awaitArrivals() {
  const uint64_t until_ns = nowNs() + kLastArrivalsNs;
  for (;;) {
    {
      const std::lock_guard<std::mutex> drain(drain_mutex_);
      drainLocked();
      if (!summary_ || !summary_->pending() || nowNs() > until_ns) {
        return;
      }
    }
    std::this_thread::sleep_for(kLastArrivalsPoll);
  }
}

void Recorder::finishSummaryLocked() {
  if (summary_) {
    summary_->settle();
    next_summary_ns_ = 0;
    drainLocked();
    summary_.reset();
  }
}

bool Recorder::writeSummaryLocked() {
  const uint64_t now_ns = nowNs();
  if (!summary_ || now_ns < next_summary_ns_) {
    return true;
  }
  // Set before json(), which may throw.
  next_summary_ns_ = now_ns + kSummaryEveryNs;
  const uint64_t began_cpu_ns = threadCpuNs();
  const Summary::State state{
      ++summaries_, now_ns, mode(), stats().records_dropped};
  const bool written = writer_->writeSummary(
      summary_->json(state, TraceWriter::kMaxSummaryBytes));
  const uint64_t took_cpu_ns = threadCpuNs() - began_cpu_ns;
  next_summary_ns_ = now_ns + untilNextSummaryNs(took_cpu_ns);
  return written;
}

} // namespace commprof
