#include "core/recorder.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "check.h"
#include "trace_file.h"

using namespace commprof;
using trace_file::numbered;

namespace {

RecorderOptions options(
    const trace_file::Directory& directory,
    const std::string& name,
    uint64_t session = 1) {
  return {
      directory / (name + ".trace"),
      directory / (name + "-"),
      "{\"name\": \"" + name + "\"}",
      session,
      /*ring_capacity=*/64,
      /*flush_interval_ms=*/10'000};
}

void pushNumbers(uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    Recorder::instance().push(numbered(i));
  }
}

void oneSession(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.addDocument(BlockType::kGroup, "{\"id\": 1}");
  CHECK(!recorder.started() && !recorder.enabled());
  recorder.start(options(directory, "one", 77));
  CHECK(recorder.started() && recorder.enabled());
  recorder.addDocument(BlockType::kGroup, "{\"id\": 2}");
  pushNumbers(0, 64);
  recorder.flush();
  CHECK_EQ(recorder.stats().records_written, 64u);
  CHECK_EQ(recorder.stats().records_unwritten, 0u);
  pushNumbers(64, 128);
  CHECK_EQ(recorder.stats().records_dropped, 0u);
  CHECK_EQ(recorder.stats().rings, 1u);
  CHECK_EQ(recorder.stats().rings_in_private_memory, 0u);
  CHECK_EQ(directory.count(".ring"), 1u);
  recorder.stop();
  recorder.stop();
  CHECK(!recorder.started() && !recorder.enabled());

  const auto content = trace_file::read(directory / "one.trace");
  CHECK(content.sound);
  CHECK_EQ(content.session, 77u);
  CHECK_EQ(content.metadata.at(0), "{\"name\": \"one\"}");
  CHECK_EQ(content.groups.size(), 2u);
  CHECK_EQ(content.groups.at(1), "{\"id\": 2}");
  CHECK_EQ(content.records.size(), 128u);
  CHECK(trace_file::countUp(content.records, 0));
  CHECK_EQ(content.end.size(), 1u);
  CHECK(content.end.at(0).starts_with("{\"records\": 128, \"dropped\": 0, "));
}

void countersStayReadableAfterStop(const trace_file::Directory& directory) {
  const RecorderStats stats = Recorder::instance().stats();
  CHECK_EQ(stats.records_written, 128u);
  CHECK_EQ(stats.records_dropped, 0u);
  CHECK_EQ(
      stats.trace_bytes, std::filesystem::file_size(directory / "one.trace"));
  CHECK_EQ(stats.write_errno, 0);
}

void closingRemovesRingFiles(const trace_file::Directory& directory) {
  CHECK_EQ(directory.count(".ring"), 0u);
  pushNumbers(0, 100);
  CHECK_EQ(directory.count(".ring"), 0u);
}

void consecutiveSessionsAreSeparate(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  for (uint64_t session = 1; session <= 20; ++session) {
    const std::string name = "again" + std::to_string(session);
    recorder.start(options(directory, name, session));
    pushNumbers(session * 1000, session * 1000 + session);
    CHECK(std::filesystem::exists(directory / (name + "-0.ring")));
    CHECK_EQ(directory.count(".ring"), 1u);
    recorder.stop();
    pushNumbers(0, 3);
    const auto content = trace_file::read(directory / (name + ".trace"));
    CHECK(content.sound);
    CHECK_EQ(content.session, session);
    CHECK_EQ(content.groups.size(), 2u);
    CHECK_EQ(content.records.size(), session);
    CHECK_EQ(content.records.at(0).op_id, session * 1000);
    CHECK_EQ(recorder.stats().records_dropped, 0u);
  }
  CHECK_EQ(recorder.stats().rings, 1u);
}

void setEnabledPausesAndResumesAnOpenTrace(
    const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.setEnabled(true);
  CHECK(!recorder.enabled());
  recorder.start(options(directory, "switch"));
  recorder.setEnabled(false);
  CHECK(!recorder.enabled() && recorder.started());
  recorder.setEnabled(true);
  CHECK(recorder.enabled());
  recorder.stop();
}

void privateRingsAreNotedInTheMetadata(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  const std::string private_note = "{\"private_rings\": true}";
  for (const bool has_file : {false, true}) {
    RecorderOptions made = options(directory, "private");
    made.ring_prefix = has_file ? made.ring_prefix : "/no/such/place-";
    recorder.start(made);
    pushNumbers(0, 5);
    recorder.flush();
    recorder.flush();
    CHECK_EQ(recorder.stats().rings_in_private_memory, has_file ? 0u : 1u);
    recorder.stop();
    const auto content = trace_file::read(made.trace_path);
    CHECK_EQ(
        std::count(
            content.metadata.begin(), content.metadata.end(), private_note),
        has_file ? 0 : 1);
    CHECK_EQ(content.records.size(), 5u);
  }
  RecorderOptions made = options(directory, "no_rings");
  made.ring_prefix.clear();
  recorder.start(made);
  pushNumbers(0, 5);
  recorder.stop();
  CHECK_EQ(trace_file::read(made.trace_path).metadata.size(), 1u);
}

void badOptionsAreRejected(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  RecorderOptions bad = options(directory, "bad");
  for (const uint64_t capacity : {0, 1, 3, 100}) {
    bad.ring_capacity = capacity;
    CHECK_THROWS(std::invalid_argument, recorder.start(bad));
  }
  bad = options(directory, "bad", /*session=*/0);
  CHECK_THROWS(std::invalid_argument, recorder.start(bad));
  bad = options(directory, "bad");
  bad.flush_interval_ms = 0;
  CHECK_THROWS(std::invalid_argument, recorder.start(bad));
  CHECK(!std::filesystem::exists(directory / "bad.trace"));
  CHECK_THROWS(
      std::system_error, recorder.start(options(directory, "missing/a")));
  CHECK(!recorder.started());

  recorder.start(options(directory, "good"));
  CHECK_THROWS(std::logic_error, recorder.start(options(directory, "second")));
  pushNumbers(0, 5);
  recorder.stop();
  CHECK_EQ(trace_file::read(directory / "good.trace").records.size(), 5u);
}

void stopThisProcess() {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    kill(parent, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kill(parent, SIGCONT);
    _exit(0);
  }
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<Record> pausesIn(const std::string& path) {
  std::vector<Record> pauses = trace_file::read(path).records;
  std::erase_if(
      pauses, [](const Record& one) { return one.kind != Kind::kPause; });
  return pauses;
}

void aPauseIsWrittenOnce(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  const RecorderOptions made = options(directory, "paused");
  recorder.start(made);
  stopThisProcess();
  for (int i = 0; i < 500 && pausesIn(made.trace_path).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    recorder.flush();
  }
  recorder.flush();
  recorder.stop();
  const std::vector<Record> pauses = pausesIn(made.trace_path);
  CHECK(!pauses.empty());
  // The trace may also have other pauses of the process.
  for (size_t i = 1; i < pauses.size(); ++i) {
    CHECK(pauses[i].timestamp_ns != pauses[i - 1].timestamp_ns);
  }
}

} // namespace

int main() {
  const trace_file::Directory directory;
  oneSession(directory);
  countersStayReadableAfterStop(directory);
  closingRemovesRingFiles(directory);
  consecutiveSessionsAreSeparate(directory);
  setEnabledPausesAndResumesAnOpenTrace(directory);
  privateRingsAreNotedInTheMetadata(directory);
  badOptionsAreRejected(directory);
  if (!check::isEmulated()) {
    aPauseIsWrittenOnce(directory);
  }
  return check::report();
}
