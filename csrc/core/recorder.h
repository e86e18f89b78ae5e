// Appends records from any thread to this process's trace file.
//
// push() is wait-free, except that a thread's first push locks to get a ring. A
// helper thread drains the rings. push() does no I/O on the trace file, and no
// lock that push() or fork() needs is held during such I/O. start() and stop()
// may be called repeatedly.
//
// In always-on mode, the helper thread does not append the records, but folds
// them into a summary of bounded size. Once a trace has a summary, the summary
// also covers later records of full mode.
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
  // Prefix of the ring files "<n>.ring", which stop() removes. If it is empty,
  // rings are in memory that is lost with the process.
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
  uint64_t records_dropped = 0; // lost, for example because a ring was full
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
  // Returns the recorder of this process. The recorder is never destroyed,
  // because other threads may call it while the process ends.
  static Recorder& instance();

  // Opens the trace and enables capture. Throws std::logic_error if capture is
  // running, std::invalid_argument, or std::system_error with the file's name.
  void start(const RecorderOptions& options);
  // Disables capture, writes the end of the trace, and removes the ring files.
  // Records that could not be written count as dropped. Several threads may
  // call it, also repeatedly. Each call returns once capture has stopped.
  void stop();
  bool started() const noexcept {
    return started_.load(std::memory_order_relaxed);
  }

  // Any thread may call it. Earlier records are handled in the earlier mode.
  void setMode(Mode mode);
  Mode mode() const noexcept {
    return mode_.load(std::memory_order_relaxed);
  }

  // Any thread may call these functions at any time. In off mode, nothing is
  // recorded even after setEnabled(true).
  bool enabled() const noexcept {
    return enabled_.load(std::memory_order_relaxed);
  }
  void setEnabled(bool on) noexcept;

  // Any thread may call it, after checking enabled(). A record that is pushed
  // after stop() is lost without harm.
  void push(const Record& record) noexcept;
  // Counts records that the caller could not make.
  void countDropped(uint64_t count = 1) noexcept {
    unrecorded_.fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t nextOpId() noexcept {
    return op_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  static uint32_t threadId() noexcept;

  // Adds a JSON document, such as more metadata, to the trace, in front of
  // later records. Every later trace of this process also gets the document.
  // Documents are written in the order of the calls.
  void addDocument(BlockType type, const std::string& json);
  // Adds a process group of this process, with its document.
  void addGroup(const GroupMembership& group, const std::string& json);
  // Sets the board on which the ranks of this host exchange arrivals in
  // always-on mode, for this trace and later ones. `global_rank`: rank of this
  // process.
  void setBoard(std::shared_ptr<ArrivalBoard> board, uint32_t global_rank);
  // Drains now: for tests, and before a fork or exit.
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
  // On another cache line than fields that all threads read, because it is
  // written often.
  alignas(64) std::atomic<uint64_t> op_id_{0};

  alignas(64) RingPool pool_;
  // Number of lost records, without those that a full ring rejected.
  std::atomic<uint64_t> unrecorded_{0};

  std::mutex session_mutex_; // one start() or stop() at a time
  std::unique_ptr<std::thread> flusher_;

  // Guards the fields below: requests from any thread to the helper thread.
  // Hold it only briefly, because fork() locks it.
  std::mutex mutex_; // locked last
  std::condition_variable wake_;
  bool open_ = false;
  bool stopping_ = false;
  bool drain_requested_ = false;
  PauseWatch pauses_;
  bool pauses_changed_ = false;
  std::vector<Record> pause_records_;
  struct Document {
    uint64_t number; // counts the documents from 1
    BlockType type;
    std::string json;
    std::optional<GroupMembership> group;
  };
  void queueDocument(Document document);
  std::vector<Document> documents_; // in order of number
  uint64_t documents_added_ = 0;
  std::shared_ptr<ArrivalBoard> board_;
  uint32_t global_rank_ = 0;
  bool board_changed_ = false;
  RecorderOptions options_;
  RecorderStats stats_;

  // Guards the trace file and its content; locked before mutex_, and held
  // during I/O.
  std::mutex drain_mutex_;
  bool write_error_reported_ = false;
  bool abandoned_ = false; // the file was removed and could not be restored
  uint64_t next_file_check_ns_ = 0; // when to check next that the file exists
  uint64_t off_since_ns_ = 0; // when recording went off; 0: recording is on
  bool off_written_ = false; // the trace states that recording is off
  bool private_rings_written_ = false;
  std::unique_ptr<TraceWriter> writer_;
  bool keep_records_ = true; // true in full mode
  // Latest clock records, as long as the mode is not full. When full mode
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
  // For each ring: the position up to which this drain reads.
  std::vector<std::pair<Ring*, uint64_t>> marks_;
  std::vector<Record> drain_buffer_;

  // During a fork: the locks that the forking thread holds.
  bool forker_has_session_ = false;
  bool forker_has_drain_ = false;
};

} // namespace commprof
