#include <fcntl.h>
#include <unistd.h>

#include <system_error>

#include "check.h"
#include "core/recorder.h"
#include "trace_file.h"

using namespace commprof;
using trace_file::FullDisk;
using trace_file::numbered;

namespace {

// A ring file has a header of 256 bytes and 64 records of 64 bytes each. Every
// ring file fits into this limit, but no trace with records does.
constexpr rlim_t kLimit = 256 + 64 * 64;

RecorderOptions options(
    const trace_file::Directory& directory,
    const std::string& name) {
  return {
      directory / (name + ".trace"),
      directory / (name + "-"),
      "{}",
      /*session=*/1,
      /*ring_capacity=*/64,
      /*flush_interval_ms=*/10'000};
}

void pushNumbers(uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    Recorder::instance().push(numbered(i));
  }
}

class Captured {
 public:
  explicit Captured(const std::string& path) : path_(path), before_(dup(2)) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 2);
    close(fd);
  }
  ~Captured() {
    restore();
  }
  void restore() {
    if (before_ >= 0) {
      dup2(before_, 2);
      close(before_);
      before_ = -1;
    }
  }
  size_t lines() const {
    std::ifstream file(path_);
    return size_t(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  }

 private:
  const std::string path_;
  int before_;
};

void unwrittenRecordsAreWrittenOnceThereIsRoom(
    const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  Captured captured(directory / "stderr");
  recorder.start(options(directory, "wait"));
  pushNumbers(0, 20);
  recorder.flush();
  const uint64_t written_bytes = recorder.stats().trace_bytes;
  {
    const FullDisk full(written_bytes + 100);
    recorder.addDocument(
        BlockType::kGroup,
        "{\"id\": 1, \"name\": \"" + std::string(200, 'g') + "\"}");
    pushNumbers(20, 50);
    recorder.flush();
    recorder.flush();
    const RecorderStats stats = recorder.stats();
    CHECK_EQ(stats.write_errno, EFBIG);
    CHECK_EQ(stats.records_written, 20u);
    CHECK_EQ(stats.records_unwritten, 30u);
    CHECK_EQ(stats.records_dropped, 0u);
    CHECK_EQ(stats.trace_bytes, written_bytes);
    // The helper thread may be writing again, so `sound` may be false.
    CHECK_EQ(trace_file::read(directory / "wait.trace").records.size(), 20u);
    pushNumbers(50, 100);
    CHECK_EQ(recorder.stats().records_dropped, 16u);
  }
  recorder.flush();
  CHECK_EQ(recorder.stats().records_unwritten, 0u);
  pushNumbers(100, 110);
  recorder.stop();
  captured.restore();
  CHECK_EQ(captured.lines(), 1u);

  const auto content = trace_file::read(directory / "wait.trace");
  CHECK(content.sound);
  CHECK_EQ(content.groups.size(), 1u);
  CHECK_EQ(content.records.size(), 20u + 64 + 10);
  CHECK_EQ(content.records.at(83).op_id, 83u);
  CHECK_EQ(content.records.at(84).op_id, 100u);
  CHECK(content.end.at(0).starts_with("{\"records\": 94, \"dropped\": 16, "));
}

void recordsLostAtStopAreCounted(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  Captured captured(directory / "stderr");
  recorder.start(options(directory, "lost"));
  pushNumbers(0, 10);
  recorder.flush();
  // The ring stays less than half full, so the helper thread is not woken.
  pushNumbers(10, 40);
  {
    // The closing block fits into 200 bytes, but the records do not.
    const FullDisk full(recorder.stats().trace_bytes + 200);
    recorder.stop();
  }
  captured.restore();
  CHECK_EQ(captured.lines(), 1u);
  const auto content = trace_file::read(directory / "lost.trace");
  CHECK(content.sound);
  CHECK_EQ(content.records.size(), 10u);
  CHECK(content.end.at(0).starts_with("{\"records\": 10, \"dropped\": 30, "));
  CHECK_EQ(directory.count(".ring"), 0u);
}

void recordsLostAtASwitchOfModeAreCounted(
    const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  Captured captured(directory / "stderr");
  recorder.start(options(directory, "switched"));
  pushNumbers(0, 10);
  recorder.flush();
  pushNumbers(10, 40);
  {
    const FullDisk full(recorder.stats().trace_bytes);
    recorder.setMode(Mode::kOff);
  }
  CHECK_EQ(recorder.stats().records_unwritten, 0u);
  CHECK_EQ(recorder.stats().records_dropped, 30u);
  recorder.stop();
  captured.restore();
  CHECK_EQ(captured.lines(), 1u);
  const auto content = trace_file::read(directory / "switched.trace");
  CHECK(content.sound);
  CHECK_EQ(content.records.size(), 10u);
  CHECK(content.end.at(0).starts_with("{\"records\": 10, \"dropped\": 30, "));
}

void aTraceWithoutAClosingBlockIsReadable(
    const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  Captured captured(directory / "stderr");
  recorder.start(options(directory, "open"));
  pushNumbers(0, 10);
  recorder.flush();
  {
    const FullDisk full(recorder.stats().trace_bytes);
    recorder.stop();
  }
  captured.restore();
  CHECK_EQ(captured.lines(), 1u);
  const auto content = trace_file::read(directory / "open.trace");
  CHECK(content.sound);
  CHECK(content.end.empty());
  CHECK_EQ(content.records.size(), 10u);
  recorder.start(options(directory, "next"));
  CHECK_EQ(recorder.stats().write_errno, 0);
  recorder.stop();
  CHECK_EQ(trace_file::read(directory / "next.trace").end.size(), 1u);
}

void startFailsOnAFullDisk(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  RecorderOptions big = options(directory, "big");
  big.metadata_json = "{\"x\": \"" + std::string(kLimit, 'x') + "\"}";
  {
    const FullDisk full(kLimit);
    CHECK_THROWS(std::system_error, recorder.start(big));
  }
  CHECK(!recorder.started());
  recorder.start(big);
  recorder.stop();
  CHECK_EQ(trace_file::read(directory / "big.trace").end.size(), 1u);
}

// The recorder reserves space for the note when it opens the trace.
void aFullDiskIsNotedInTheTrace(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  Captured captured(directory / "stderr");
  recorder.start(options(directory, "named"));
  CHECK_EQ(trace_file::read(directory / "named.trace").metadata.size(), 1u);
  pushNumbers(0, 10);
  {
    const FullDisk full(recorder.stats().trace_bytes);
    recorder.flush();
  }
  recorder.stop();
  captured.restore();
  const auto content = trace_file::read(directory / "named.trace");
  CHECK(content.sound);
  CHECK_EQ(content.records.size(), 10u);
  const std::string expected =
      "{\"write_failed\": {\"errno\": 27, \"reason\": \"File too large\", ";
  CHECK(content.metadata.at(1).starts_with(expected));
}

void aRemovedTraceIsCreatedAgain(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  Captured captured(directory / "stderr");
  RecorderOptions inside = options(directory, "gone/trace");
  std::filesystem::create_directory(directory / "gone");
  recorder.start(inside);
  pushNumbers(0, 10);
  recorder.flush();
  std::filesystem::remove_all(directory / "gone");
  pushNumbers(10, 20);
  recorder.stop();
  captured.restore();
  CHECK_EQ(captured.lines(), 1u);
  const auto content = trace_file::read(directory / "gone/trace.trace");
  CHECK(content.sound);
  CHECK_EQ(content.records.size(), 20u);
  CHECK(trace_file::countUp(content.records, 0));
  CHECK_EQ(content.end.size(), 1u);
}

void aFileOfAnotherJobIsNotOverwritten(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  Captured captured(directory / "stderr");
  const std::string path = directory / "taken.trace";
  recorder.start(options(directory, "taken"));
  pushNumbers(0, 10);
  std::filesystem::remove(path);
  std::ofstream(path) << "another job's";
  recorder.stop();
  captured.restore();
  CHECK_EQ(captured.lines(), 1u);
  std::ifstream file(path);
  const std::string found{std::istreambuf_iterator<char>(file), {}};
  CHECK_EQ(found, "another job's");
}

} // namespace

int main() {
  const trace_file::Directory directory;
  unwrittenRecordsAreWrittenOnceThereIsRoom(directory);
  recordsLostAtStopAreCounted(directory);
  recordsLostAtASwitchOfModeAreCounted(directory);
  aTraceWithoutAClosingBlockIsReadable(directory);
  startFailsOnAFullDisk(directory);
  aFullDiskIsNotedInTheTrace(directory);
  aRemovedTraceIsCreatedAgain(directory);
  aFileOfAnotherJobIsNotOverwritten(directory);
  return check::report();
}
