// Takes records from any thread and appends them to this process's trace file.
//
// push() is wait-free; only a thread's first one takes a lock, to get a ring. A
// helper thread drains the rings; training threads never do file I/O, and no
// lock that they or fork() take is held over it. start() and stop() may be
// called again and again.
//
// In always-on mode the helper thread folds the records into a summary of
// bounded size in the place of appending them. Once a trace has a summary it
// covers all that is recorded from then on, in full mode too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "always_on/arrivals/arrival_exchange.h"
#include "always_on/summary/summary.h"
#include "core/modes/mode.h"
#include "core/modes/mode_switch.h"
#include "core/process/pause_watch.h"
#include "core/ring_pool.h"
#include "core/trace_writer.h"

namespace commprof {

struct RecorderOptions {
  std::string trace_path;
  // Ring files are ring_prefix + "<n>.ring", removed by stop(); empty = memory
  // that dies with the process.
  std::string ring_prefix;
  std::string metadata_json; // first block of the trace
  uint64_t session = 0; // random, not 0
  uint64_t ring_capacity = 1 << 14; // records per thread; a power of two
  uint32_t flush_interval_ms = 200;
  Mode mode = Mode::kFull; // to begin with
  std::string control_path = {}; // of ModeSwitch; empty: no file is watched
  int switch_signal = 0; // moves on to the next mode; 0: none does
};

struct RecorderStats {
  uint64_t records_written = 0;
  uint64_t records_dropped = 0; // a ring was full, or none was left
  uint64_t records_unwritten = 0; // still in the rings
  uint64_t trace_bytes = 0;
  uint64_t rings = 0;
  uint64_t rings_in_private_memory = 0; // would not survive SIGKILL
  int write_errno = 0; // of the last failed write
  uint64_t records_summarised = 0; // folded into the summary
  bool signal_taken = false; // the switch signal has a handler of the program
};

class Recorder {
 public:
  // One per process, never destroyed: callbacks of other threads may come late.
  static Recorder& instance();

  // Opens the trace and enables capture. Throws std::logic_error when already
  // started, std::invalid_argument, or std::system_error naming the file.
  void start(const RecorderOptions& options);
  // Disables capture, drains, writes the closing block, removes the ring files.
  // What could not be written by then counts as dropped. Idempotent; of several
  // callers, each returns once capture has stopped.
  void stop();
  bool started() const noexcept {
    return started_.load(std::memory_order_relaxed);
  }

  // Any thread. What was recorded before is kept as the mode before would.
  void setMode(Mode mode);
  Mode mode() const noexcept {
    return mode_.load(std::memory_order_relaxed);
  }

  // Any thread, any time; cheap enough to call around every step. Off mode
  // records nothing, whatever setEnabled() was told.
  bool enabled() const noexcept {
    return enabled_.load(std::memory_order_relaxed);
  }
  void setEnabled(bool on) noexcept;

  // Any thread. The caller has checked enabled(); a record pushed after stop()
  // goes nowhere and does no harm.
  void push(const Record& record) noexcept;
  // Something that should have been recorded was not.
  void countDropped(uint64_t count = 1) noexcept {
    unrecorded_.fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t nextOpId() noexcept {
    return op_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  // Kernel thread id of the caller, cached.
  static uint32_t threadId() noexcept;

  // Stores a JSON document (a group, more metadata) soon, and before the
  // records that follow, and in every later trace of this process, in the order
  // of the calls.
  void addDocument(BlockType type, const std::string& json);
  // A process group of this process, and its document.
  void addGroup(const GroupMembership& group, const std::string& json);
  // Where the ranks of this host exchange arrivals; for always-on mode, in this
  // and in every later trace. `global_rank` is this process's.
  void setBoard(std::shared_ptr<ArrivalBoard> board, uint32_t global_rank);
  // Drains now; for tests and for a caller about to fork or exit.
  void flush();
  // Of the trace that is open, else of the one closed last.
  RecorderStats stats();

 private:
  Recorder();
  void beginModeLocked();
  void startFlusherLocked();
  void flusherLoop();
  void refreshEnabled() noexcept;
  // Of what follows, *Locked() need drain_mutex_ and no other.
  void setModeLocked(Mode mode) noexcept;
  void drainLocked() noexcept;
  void markRingsLocked();
  void takeToldLocked();
  bool writeDocumentsLocked() noexcept;
  bool writeRecordsLocked();
  void foldRecordsLocked();
  void keepClocksLocked(const Record* records, uint64_t count);
  bool writeClocksLocked();
  bool writeSummaryLocked();
  void awaitArrivals();
  void finishSummaryLocked();
  void complainLocked() noexcept;
  void lookAfterFileLocked() noexcept;
  void takePause(const Pause& seen) noexcept;
  void keepPause(const Pause& pause) noexcept; // with mutex_
  void keepSupposedPause() noexcept; // with mutex_
  bool writePausesLocked() noexcept;
  void closeLocked();
  RecorderStats statsNow(); // with mutex_
  void publishLocked() noexcept;
  static void beforeFork();
  static void afterForkParent();
  static void afterForkChild();
  void forgetDrain() noexcept;

  std::atomic<bool> enabled_{false}; // wanted_, with a trace and a mode for it
  std::atomic<bool> wanted_{false};
  std::atomic<Mode> mode_{Mode::kFull};
  std::atomic<bool> started_{false};
  // Written all the time by one thread: not beside what all of them read.
  alignas(64) std::atomic<uint64_t> op_id_{0};

  alignas(64) RingPool pool_;
  std::atomic<uint64_t> unrecorded_{0}; // no ring, or no room for it before

  std::mutex session_mutex_; // one start() or stop() at a time
  std::unique_ptr<std::thread> flusher_;

  // What any thread tells or asks. Held for moments: fork() takes it.
  std::mutex mutex_; // taken last
  std::condition_variable wake_;
  bool open_ = false; // a trace
  bool stopping_ = false;
  bool told_ = false; // something is worth a drain at once
  PauseWatch pauses_;
  bool pauses_told_ = false; // they are to be written
  std::vector<Record> pause_records_; // not yet taken
  struct Document {
    uint64_t number; // from 1 on
    BlockType type;
    std::string json;
    std::optional<GroupMembership> group;
  };
  void tell(Document document);
  std::vector<Document> documents_; // by number
  uint64_t documents_told_ = 0; // the last one's number
  std::shared_ptr<ArrivalBoard> board_;
  uint32_t global_rank_ = 0;
  bool board_told_ = false;
  RecorderOptions options_;
  RecorderStats stats_;

  // The trace file and what goes into it; taken before mutex_. Held over I/O.
  std::mutex drain_mutex_;
  bool complained_ = false; // of this trace, on stderr
  bool abandoned_ = false; // its file was removed and cannot be made anew
  uint64_t next_look_ns_ = 0; // at the file
  std::unique_ptr<TraceWriter> writer_;
  bool keep_records_ = true; // the mode is full
  // The latest clock records that were not kept: full mode begins with them.
  std::deque<Record> clocks_;
  ArrivalExchange exchange_;
  std::unique_ptr<Summary> summary_; // null before always-on mode
  uint64_t summaries_ = 0; // written
  uint64_t next_summary_ns_ = 0;
  ModeSwitch switch_; // the helper thread's own while it runs
  RecorderStats drained_; // what the drain itself counts
  std::deque<Document> taken_; // to be written
  uint64_t documents_taken_ = 0; // number of the last one, in this trace
  uint64_t groups_taken_ = 0; // the same for exchange_, in this process
  std::optional<Pauses> pauses_taken_; // to be written
  std::vector<Record> pauses_drained_; // records to be written
  // What this drain takes: of each ring up to a number.
  std::vector<std::pair<Ring*, uint64_t>> marks_;
  std::vector<Record> drain_buffer_;

  // Of the thread that forks: what it holds besides mutex_.
  bool forker_has_session_ = false;
  bool forker_has_drain_ = false;
};

} // namespace commprof
