#include "core/phase_marker.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "check.h"
#include "trace_file.h"

using namespace commprof;

namespace {

constexpr uint8_t kForward = uint8_t(Phase::kForward);
constexpr uint8_t kBackward = uint8_t(Phase::kBackward);

template <class Body>
std::vector<Record> recorded(Kind kind, Body&& body) {
  const trace_file::Directory directory;
  Recorder& recorder = Recorder::instance();
  recorder.start({directory / "a.trace", "", "{}", 1});
  body();
  recorder.stop();
  std::vector<Record> found;
  for (const Record& record : trace_file::read(directory / "a.trace").records) {
    if (record.kind == kind) {
      found.push_back(record);
    }
  }
  return found;
}

void oneMarkerIsOneRecord() {
  const uint64_t before_ns = nowNs();
  const auto records = recorded(Kind::kPhase, [] {
    PhaseMarker marker(kForward);
    marker.begin();
    marker.end();
  });
  CHECK_EQ(records.size(), 1u);
  CHECK_EQ(records.at(0).aux, uint32_t(kForward));
  CHECK_EQ(records.at(0).thread, Recorder::threadId());
  CHECK(records.at(0).timestamp_ns >= before_ns);
  CHECK(records.at(0).value >= records.at(0).timestamp_ns);
  CHECK(records.at(0).value <= nowNs());
}

void onlyTheOutermostMarkerIsRecorded() {
  uint64_t inner_ended_ns = 0;
  const auto records = recorded(Kind::kPhase, [&inner_ended_ns] {
    PhaseMarker outer(kForward);
    PhaseMarker inner(kBackward);
    outer.begin();
    inner.begin();
    outer.begin();
    inner.end();
    outer.end();
    inner_ended_ns = nowNs();
    outer.end();
    inner.begin();
    inner.end();
  });
  CHECK_EQ(records.size(), 2u);
  CHECK_EQ(records.at(0).aux, uint32_t(kForward));
  CHECK_EQ(records.at(1).aux, uint32_t(kBackward));
  CHECK(records.at(0).value >= inner_ended_ns);
  CHECK(records.at(0).value <= records.at(1).timestamp_ns);
}

void samplesAddUpInTheOutermost() {
  const auto records = recorded(Kind::kPhase, [] {
    PhaseMarker outer(kForward);
    PhaseMarker inner(kBackward);
    inner.end(9);
    outer.begin();
    inner.begin();
    inner.end(3);
    outer.end(4);
    outer.begin();
    outer.end();
    outer.begin();
    inner.end(kSamplesUnknown);
    outer.end(4);
  });
  CHECK_EQ(records.size(), 3u);
  CHECK_EQ(records.at(0).seq, 7u);
  CHECK_EQ(records.at(1).seq, 0u);
  CHECK_EQ(records.at(2).seq, kSamplesUnknown);
}

void endWithoutBeginIsIgnored() {
  const auto records = recorded(Kind::kPhase, [] {
    PhaseMarker marker(kForward);
    PhaseMarker other(kBackward);
    marker.end();
    marker.begin();
    other.end();
    marker.end();
    marker.end();
  });
  CHECK_EQ(records.size(), 1u);
}

void stepBoundaryDropsAnOpenMarker() {
  const auto records = recorded(Kind::kPhase, [] {
    PhaseMarker left_open(kForward);
    PhaseMarker next(kBackward);
    left_open.begin();
    left_open.begin();
    markStep(0, true);
    left_open.end();
    next.begin();
    left_open.end();
    next.end();
  });
  CHECK_EQ(records.size(), 1u);
  CHECK_EQ(records.at(0).aux, uint32_t(kBackward));
}

void threadsShareAMarker() {
  const auto records = recorded(Kind::kPhase, [] {
    PhaseMarker marker(kForward);
    marker.begin();
    std::thread([&marker] {
      marker.begin();
      marker.end();
    }).join();
    marker.end();
  });
  CHECK_EQ(records.size(), 2u);
  CHECK(records.at(0).thread != records.at(1).thread);
}

void openMarkerMayBeDestroyed() {
  const auto records = recorded(Kind::kPhase, [] {
    auto gone = std::make_unique<PhaseMarker>(kForward);
    gone->begin();
    gone.reset();
    markStep(0, true);
    // The second marker is made at the address of the first marker.
    std::optional<PhaseMarker> place(kForward);
    place->begin();
    place.emplace(kBackward);
    place->begin();
    place->end();
  });
  CHECK_EQ(records.size(), 1u);
  CHECK_EQ(records.at(0).aux, uint32_t(kBackward));
}

void stepsAreMarked() {
  const auto records = recorded(Kind::kStep, [] {
    markStep(7, false);
    markStep(7, true);
    Recorder::instance().setEnabled(false);
    markStep(8, true);
    Recorder::instance().setEnabled(true);
    markStep(9, true, kStepSkipped);
  });
  CHECK_EQ(records.size(), 3u);
  CHECK_EQ(records.at(0).op_id, 7u);
  CHECK_EQ(records.at(0).aux, 0u);
  CHECK_EQ(records.at(1).aux, 1u);
  CHECK_EQ(records.at(2).op_id, 9u);
  CHECK_EQ(records.at(1).seq, kStepDeclared);
  CHECK_EQ(records.at(2).seq, kStepSkipped);
  CHECK(records.at(0).timestamp_ns <= records.at(1).timestamp_ns);
}

class Rival {
 public:
  explicit Rival(bool in_this_process) {
    if (in_this_process) {
      thread_ = std::thread([this] {
        while (!over_.load(std::memory_order_relaxed)) {
        }
      });
      return;
    }
    child_ = fork();
    CHECK(child_ >= 0);
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (volatile bool on = true; on;) {
      }
    }
  }
  ~Rival() {
    over_ = true;
    if (thread_.joinable()) {
      thread_.join();
      return;
    }
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
  pid_t child_ = -1;
};

void runDelayIsRecordedDuringPhases(bool in_this_process) {
  cpu_set_t old_affinity;
  CHECK_EQ(sched_getaffinity(0, sizeof(old_affinity), &old_affinity), 0);
  cpu_set_t one_core;
  CPU_ZERO(&one_core);
  CPU_SET(sched_getcpu(), &one_core);
  CHECK_EQ(sched_setaffinity(0, sizeof(one_core), &one_core), 0);
  std::optional<Rival> rival(in_this_process);
  const auto spin = [] {
    PhaseMarker marker(kForward);
    for (int i = 0; i < 10; ++i) {
      marker.begin();
      for (const uint64_t until = nowNs() + 25'000'000; nowNs() < until;) {
      }
      marker.end();
    }
  };
  const auto records = recorded(Kind::kRunDelay, spin);
  const auto counts = recorded(Kind::kHostCounts, spin);
  rival.reset();
  CHECK_EQ(sched_setaffinity(0, sizeof(old_affinity), &old_affinity), 0);
  CHECK(!records.empty());
  uint64_t delay_ns = 0;
  uint64_t helpers_cpu_ns = 0;
  for (const Record& record : records) {
    delay_ns += record.bytes_in;
    helpers_cpu_ns += record.bytes_out;
    CHECK_EQ(record.thread, Recorder::threadId());
    CHECK(record.bytes_in > 0 || record.bytes_out > 0);
    CHECK(record.bytes_in <= record.value - record.timestamp_ns);
    CHECK(record.value - record.timestamp_ns >= 3'000'000);
  }
  CHECK(delay_ns > 0);
  CHECK_EQ(helpers_cpu_ns > delay_ns / 10, in_this_process);
  uint64_t switches = 0;
  for (const Record& record : counts) {
    switches += record.aux;
    CHECK(record.bytes_out == 0 || record.op_id > 0);
  }
  CHECK(switches > 0);
}

// The parent has waited longer for a core than the child will.
void aForkedChildRecordsItsOwnRunDelay() {
  const pid_t child = fork();
  if (child == 0) {
    check::failed = 0;
    runDelayIsRecordedDuringPhases(false);
    _exit(check::failed == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

void pageFaultsAreRecordedDuringPhases() {
  constexpr size_t kBytes = 40 << 20;
  const auto records = recorded(Kind::kHostCounts, [] {
    PhaseMarker marker(kForward);
    // The first phase may only set the baseline, so two phases count.
    for (int i = 0; i < 3; ++i) {
      marker.begin();
      void* memory = mmap(
          nullptr,
          kBytes,
          PROT_READ | PROT_WRITE,
          MAP_PRIVATE | MAP_ANONYMOUS,
          -1,
          0);
      CHECK(memory != MAP_FAILED);
      madvise(memory, kBytes, MADV_NOHUGEPAGE);
      for (size_t at = 0; at < kBytes; at += 4096) {
        static_cast<volatile char*>(memory)[at] = 1;
      }
      munmap(memory, kBytes);
      for (const uint64_t until = nowNs() + 25'000'000; nowNs() < until;) {
      }
      marker.end();
    }
  });
  uint64_t faults = 0;
  for (const Record& record : records) {
    faults += record.seq;
  }
  CHECK(faults >= 2 * kBytes / 4096);
#ifndef __SANITIZE_THREAD__
  // The thread sanitizer touches additional memory.
  CHECK(faults < 4 * kBytes / 4096);
#endif
}

void costIsMeasuredWithoutATrace() {
  const double cost_ns = recordCostNs(1000);
  CHECK(cost_ns > 0 && cost_ns < 1e6);
  CHECK(recordCostNs(0) >= 0);
}

} // namespace

int main() {
  oneMarkerIsOneRecord();
  onlyTheOutermostMarkerIsRecorded();
  samplesAddUpInTheOutermost();
  endWithoutBeginIsIgnored();
  stepBoundaryDropsAnOpenMarker();
  threadsShareAMarker();
  openMarkerMayBeDestroyed();
  stepsAreMarked();
  runDelayIsRecordedDuringPhases(true);
  if (!check::isEmulated()) {
    runDelayIsRecordedDuringPhases(false);
  }
  // Under a sanitizer, the child of a process with threads may not start a
  // thread.
  if (!check::isEmulated() && !check::kSanitized) {
    aForkedChildRecordsItsOwnRunDelay();
  }
  pageFaultsAreRecordedDuringPhases();
  costIsMeasuredWithoutATrace();
  return check::report();
}
