// Appends records from any thread to this process's trace file.
//
// push() is wait-free; only a thread's first push locks, to get a ring. A
// helper thread drains the rings. Training threads never do file I/O, and no
// lock that they or fork() need is held during file I/O. start() and stop() may
// be called repeatedly.
//
// In always-on mode the helper thread folds the records into a summary of
// bounded size instead of appending them. Once a trace has a summary, the
// summary covers all later records, also those of full mode.
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
  // Ring files are named ring_prefix + "<n>.ring"; stop() removes them. If this
  // is empty, rings lie in memory that is lost with the process.
  std::string ring_prefix;
  std::string metadata_json; // first block of the trace
  uint64_t session = 0; // random, not 0
  uint64_t ring_capacity = 1 << 14; // records per thread; a power of two
  uint32_t flush_interval_ms = 200;
  Mode mode = Mode::kFull; // mode at the start
  std::string control_path = {}; // file that ModeSwitch watches; empty: none
  int switch_signal = 0; // signal that switches to the next mode; 0: none
};

struct RecorderStats {
  uint64_t records_written = 0;
  uint64_t records_dropped = 0; // a ring was full, or there was no ring
  uint64_t records_unwritten = 0; // still in the rings
  uint64_t trace_bytes = 0;
  uint64_t rings = 0;
  uint64_t rings_in_private_memory = 0; // lost if the process is killed
  int write_errno = 0; // errno of the last failed write
  uint64_t records_summarised = 0; // folded into the summary
  bool signal_taken = false; // the program handles the switch signal itself
};

class Recorder {
 public:
  // The process's only recorder. Never destroyed: other threads may still call
  // it when the process ends.
  static Recorder& instance();

  // Opens the trace and enables capture. Throws std::logic_error when already
  // started, std::invalid_argument, or std::system_error naming the file.
  void start(const RecorderOptions& options);
  // Disables capture, drains, writes the closing block, removes the ring files.
  // Records that could not be written count as dropped. Idempotent; if
  // called by several threads, each returns once capture has stopped.
  void stop();
  bool started() const noexcept {
    return started_.load(std::memory_order_relaxed);
  }

  // Any thread. Earlier records are kept according to the earlier mode.
  void setMode(Mode mode);
  Mode mode() const noexcept {
    return mode_.load(std::memory_order_relaxed);
  }

  // Any thread, any time; cheap enough to call around every step. In off mode
  // nothing is recorded, whatever setEnabled() was called with.
  bool enabled() const noexcept {
    return enabled_.load(std::memory_order_relaxed);
  }
  void setEnabled(bool on) noexcept;

  // Any thread. The caller has checked enabled(); a record pushed after stop()
  // is lost, without harm.
  void push(const Record& record) noexcept;
  // Counts records that could not be made.
  void countDropped(uint64_t count = 1) noexcept {
    unrecorded_.fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t nextOpId() noexcept {
    return op_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  // Kernel thread id of the caller, cached.
  static uint32_t threadId() noexcept;

  // Writes a JSON document (a group, more metadata) to the trace soon, before
  // any later record. Every later trace of this process gets the documents too,
  // in the order of the calls.
  void addDocument(BlockType type, const std::string& json);
  // Adds a process group of this process, with its document.
  void addGroup(const GroupMembership& group, const std::string& json);
  // Sets the board on which this host's ranks exchange arrivals in always-on
  // mode, for this and every later trace. `global_rank` is this process's.
  void setBoard(std::shared_ptr<ArrivalBoard> board, uint32_t global_rank);
  // Drains now; for tests and for a caller about to fork or exit.
  void flush();
  // Returns the counters of the open trace, or of the last one if none is open.
  RecorderStats stats();

 private:
  Recorder();
  void beginModeLocked();
  void startFlusherLocked();
  void flusherLoop();
  void refreshEnabled() noexcept;
  // Functions named *Locked() need drain_mutex_ and no other lock.
  void setModeLocked(Mode mode) noexcept;
  void drainLocked() noexcept;
  void markRingsLocked();
  void takeRequestsLocked();
  bool writeDocumentsLocked() noexcept;
  bool writeRecordsLocked();
  void foldRecordsLocked();
  void keepClocksLocked(const Record* records, uint64_t count);
  bool writeClocksLocked();
  bool writeSummaryLocked();
  void awaitArrivals();
  void finishSummaryLocked();
  void reportWriteErrorLocked() noexcept;
  void restoreIfRemovedLocked() noexcept;
  void takePause(const Pause& seen) noexcept;
  void keepPause(const Pause& pause) noexcept; // needs mutex_
  void keepSupposedPause() noexcept; // needs mutex_
  bool writePausesLocked() noexcept;
  bool writePrivateRingsLocked() noexcept;
  bool writeRecordingLocked() noexcept;
  void closeLocked();
  RecorderStats statsNow(); // needs mutex_
  void publishLocked() noexcept;
  static void beforeFork();
  static void afterForkParent();
  static void afterForkChild();
  void forgetDrain() noexcept;

  // True if wanted_, a trace is open and the mode is not off.
  std::atomic<bool> enabled_{false};
  std::atomic<bool> wanted_{false};
  std::atomic<Mode> mode_{Mode::kFull};
  std::atomic<bool> started_{false};
  // Written often: on another cache line than the fields that all threads read.
  alignas(64) std::atomic<uint64_t> op_id_{0};

  alignas(64) RingPool pool_;
  // Number of records that were lost because there was no ring, or that were
  // never made.
  std::atomic<uint64_t> unrecorded_{0};

  std::mutex session_mutex_; // one start() or stop() at a time
  std::unique_ptr<std::thread> flusher_;

  // Guards the fields below, which hold requests of any thread to the helper
  // thread. Hold it only briefly, because fork() locks it.
  std::mutex mutex_; // locked last
  std::condition_variable wake_;
  bool open_ = false; // a trace is open
  bool stopping_ = false;
  bool drain_requested_ = false; // the helper thread must drain immediately
  PauseWatch pauses_;
  bool pauses_changed_ = false; // pauses_ must be written
  std::vector<Record> pause_records_; // not yet drained
  struct Document {
    uint64_t number; // counts the documents from 1
    BlockType type;
    std::string json;
    std::optional<GroupMembership> group;
  };
  void queueDocument(Document document);
  std::vector<Document> documents_; // in order of number
  uint64_t documents_added_ = 0; // number of the newest document
  std::shared_ptr<ArrivalBoard> board_;
  uint32_t global_rank_ = 0;
  bool board_changed_ = false;
  RecorderOptions options_;
  RecorderStats stats_;

  // Guards the trace file and its content; locked before mutex_, and held
  // during I/O.
  std::mutex drain_mutex_;
  // An error of this trace was reported on stderr.
  bool write_error_reported_ = false;
  bool abandoned_ = false; // the file was removed and could not be restored
  uint64_t next_file_check_ns_ = 0; // when to check next that the file exists
  uint64_t off_since_ns_ = 0; // when recording went off; 0: it is on
  bool off_written_ = false; // the trace states that recording is off
  // The trace says that some rings have no file.
  bool private_rings_written_ = false;
  std::unique_ptr<TraceWriter> writer_;
  bool keep_records_ = true; // the mode is full
  // Latest clock records. Always-on mode does not write them; when full mode
  // begins, they are written first.
  std::deque<Record> clocks_;
  ArrivalExchange exchange_;
  std::unique_ptr<Summary> summary_; // null before always-on mode
  uint64_t summaries_ = 0; // number of summaries written
  uint64_t next_summary_ns_ = 0;
  ModeSwitch switch_; // used only by the helper thread while it runs
  RecorderStats drained_; // counters as of the last drain
  std::deque<Document> taken_; // documents to be written
  // Number of the last document taken for this trace.
  uint64_t documents_taken_ = 0;
  uint64_t groups_taken_ = 0; // number of the last group taken for exchange_
  std::optional<Pauses> pauses_taken_; // pauses to be written
  std::vector<Record> pauses_drained_; // records to be written
  // Rings that this drain reads, and the number of pushes up to which it reads
  // each.
  std::vector<std::pair<Ring*, uint64_t>> marks_;
  std::vector<Record> drain_buffer_;

  // Whether the forking thread holds these locks besides mutex_.
  bool forker_has_session_ = false;
  bool forker_has_drain_ = false;
};

} // namespace commprof
