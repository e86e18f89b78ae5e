// Functions of the recorder that handle external faults: a full disk, a removed
// trace file, a stopped process. Training goes on, and the trace records the
// fault.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>

#include "base/clock.h"
#include "core/recorder.h"

namespace commprof {

namespace {

constexpr uint64_t kFileCheckEveryNs = 500'000'000;
constexpr size_t kMostPauses = 4096; // kept in memory while the disk is full

} // namespace

void Recorder::reportWriteErrorLocked() noexcept {
  if (write_error_reported_) {
    return;
  }
  write_error_reported_ = true;
  const int error = writer_->error();
  std::fprintf(
      stderr,
      "commprof: cannot write %s: %s. Training goes on; the newest records "
      "wait in memory, and what does not fit is counted as dropped.\n",
      options_.trace_path.c_str(),
      std::strerror(error));
  char note[256];
  const int length = std::snprintf(
      note,
      sizeof(note),
      "{\"write_failed\": {\"errno\": %d, \"reason\": \"%s\", "
      "\"monotonic_ns\": %" PRIu64 "}}",
      error,
      std::strerror(error),
      nowNs());
  if (length > 0 && size_t(length) < sizeof(note)) {
    (void)writer_->writeNote({note, size_t(length)});
  }
}

// Restores the trace if it was removed. Otherwise it would be lost when this
// process ends.
void Recorder::restoreIfRemovedLocked() noexcept {
  const uint64_t now_ns = nowNs();
  if (abandoned_ || now_ns < next_file_check_ns_) {
    return;
  }
  next_file_check_ns_ = now_ns + kFileCheckEveryNs;
  if (!writer_->removed()) {
    return;
  }
  const char* path = options_.trace_path.c_str();
  if (writer_->restore()) {
    std::fprintf(
        stderr, "commprof: %s was removed and has been restored.\n", path);
    return;
  }
  abandoned_ = true;
  std::fprintf(
      stderr,
      "commprof: %s was removed and cannot be restored: %s. Training goes "
      "on; all that is recorded is lost when this process ends.\n",
      path,
      std::strerror(writer_->error()));
}

void Recorder::takePause(const Pause& seen) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (open_ && pauses_.take(seen)) {
      keepPause(seen);
    }
  }
  wake_.notify_one();
}

void Recorder::keepSupposedPause() noexcept {
  if (const std::optional<Pause> pause = pauses_.supposed()) {
    keepPause(*pause);
  }
}

void Recorder::keepPause(const Pause& pause) noexcept {
  if (PauseWatch::isLong(pause)) {
    pauses_changed_ = drain_requested_ = true;
  }
  if (!enabled()) {
    return;
  }
  if (pause_records_.size() == kMostPauses) {
    countDropped();
    return;
  }
  Record record;
  record.kind = Kind::kPause;
  record.thread = threadId();
  record.timestamp_ns = pause.begin_ns;
  record.value = pause.end_ns;
  try {
    pause_records_.push_back(record);
  } catch (const std::bad_alloc&) {
    countDropped();
  }
}

// Tells readers of the ring files that some rings have no file, because they
// are in private memory. This must be written before the first record of such a
// ring.
bool Recorder::writePrivateRingsLocked() noexcept {
  const bool found = !options_.ring_prefix.empty() &&
      std::any_of(marks_.begin(), marks_.end(), [](const auto& mark) {
        return !mark.first->fileBacked();
      });
  if (!found || private_rings_written_) {
    return true;
  }
  constexpr std::string_view kJson = "{\"private_rings\": true}";
  private_rings_written_ =
      writer_->writeBlock(BlockType::kMetadata, kJson.data(), kJson.size());
  return private_rings_written_;
}

bool Recorder::writePausesLocked() noexcept {
  if (!pauses_taken_) {
    return true;
  }
  const Pauses& found = *pauses_taken_;
  char json[256];
  const int length = std::snprintf(
      json,
      sizeof(json),
      "{\"pauses\": {\"count\": %" PRIu64 ", \"total_ns\": %" PRIu64
      ", \"longest_ns\": %" PRIu64 ", \"longest_begin_ns\": %" PRIu64 "}}",
      found.count,
      found.total_ns,
      found.longest_ns,
      found.longest_begin_ns);
  if (!writer_->writeBlock(BlockType::kMetadata, json, size_t(length))) {
    return false;
  }
  pauses_taken_.reset();
  return true;
}

} // namespace commprof
