#include "core/recorder.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "base/clock.h"
#include "check.h"
#include "trace_file.h"

using namespace commprof;
using trace_file::numbered;

namespace {

RecorderOptions options(
    const trace_file::Directory& directory,
    const std::string& name,
    Mode mode) {
  RecorderOptions made;
  made.trace_path = directory / (name + ".trace");
  made.metadata_json = "{}";
  made.session = 1;
  made.flush_interval_ms = 20;
  made.mode = mode;
  made.control_path = directory / (name + ".control");
  return made;
}

void writeControlFile(const RecorderOptions& options, const std::string& word) {
  std::ofstream(options.control_path) << word << '\n';
}

bool within5s(const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

bool modeBecomes(Mode mode) {
  return within5s([mode] { return Recorder::instance().mode() == mode; });
}

void pushSteps(uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    Recorder::instance().push(numbered(i));
  }
}

// The valid summary is the one with the highest number.
std::string summaryOf(const trace_file::Content& content) {
  std::string found;
  uint64_t highest = 0;
  for (const std::string& summary : content.summaries) {
    const uint64_t sequence = std::stoull(summary.substr(12, 20));
    if (sequence > highest) {
      highest = sequence;
      found = summary;
    }
  }
  return found;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void alwaysOnWritesNoRecords(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  const RecorderOptions made = options(directory, "on", Mode::kAlwaysOn);
  recorder.start(made);
  CHECK(recorder.enabled());
  uint64_t bytes = 0;
  for (int round = 0; round < 100; ++round) {
    pushSteps(0, 1000);
    recorder.flush();
    // By now, both places for summaries are allocated.
    if (round == 2) {
      bytes = std::filesystem::file_size(made.trace_path);
    }
  }
  CHECK_EQ(std::filesystem::file_size(made.trace_path), bytes);
  CHECK_EQ(recorder.stats().records_summarised, 100'000u);
  CHECK_EQ(recorder.stats().records_written, 0u);
  recorder.stop();
  const auto content = trace_file::read(made.trace_path);
  CHECK(content.sound);
  CHECK_EQ(content.records.size(), 0u);
  CHECK_EQ(content.summaries.size(), 2u);
  CHECK(holds(summaryOf(content), "\"records\":100000,\"dropped\":0,"));
  CHECK(holds(summaryOf(content), "\"mode\":\"always-on\""));
}

void offRecordsNothing(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "off", Mode::kOff));
  CHECK(!recorder.enabled());
  recorder.setEnabled(true);
  CHECK(!recorder.enabled());
  recorder.setMode(Mode::kFull);
  CHECK(recorder.enabled());
  recorder.setEnabled(false);
  recorder.setMode(Mode::kAlwaysOn);
  CHECK(!recorder.enabled());
  recorder.setEnabled(true);
  CHECK(recorder.enabled());
  recorder.stop();
  CHECK(!recorder.enabled());
}

void longPausesOfRecordingAreNoted(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  const RecorderOptions made = options(directory, "silent", Mode::kFull);
  const auto countNotes = [&](const std::string& value) {
    const auto found = trace_file::read(made.trace_path).metadata;
    return size_t(
        std::count_if(found.begin(), found.end(), [&](const std::string& json) {
          return json.starts_with(
              "{\"capture_state\": {\"recording\": " + value + ", ");
        }));
  };
  recorder.start(made);
  recorder.setEnabled(false);
  recorder.flush();
  recorder.setEnabled(true);
  recorder.flush();
  CHECK_EQ(countNotes("true") + countNotes("false"), 0u);
  recorder.setEnabled(false);
  CHECK(within5s([&] { return countNotes("false") == 1; }));
  recorder.setMode(Mode::kAlwaysOn);
  CHECK_EQ(countNotes("true"), 0u);
  recorder.setEnabled(true);
  recorder.setMode(Mode::kFull);
  CHECK_EQ(countNotes("true"), 1u);
  writeControlFile(made, "off");
  CHECK(within5s([&] { return countNotes("false") == 2; }));
  const auto end_ns = nowNs();
  recorder.setMode(Mode::kFull);
  pushSteps(0, 1);
  recorder.stop();
  CHECK_EQ(countNotes("true"), 2u);
  CHECK_EQ(countNotes("false"), 2u);
  const std::string last = trace_file::read(made.trace_path).metadata.back();
  CHECK(std::stoull(last.substr(last.rfind(' '))) >= end_ns);
}

// The summary counts all records from the first always-on mode on. The file has
// only the records of full mode.
void theControlFileSwitchesTheMode(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  const RecorderOptions made = options(directory, "file", Mode::kFull);
  recorder.start(made);
  pushSteps(0, 10);
  writeControlFile(made, "always-on");
  CHECK(modeBecomes(Mode::kAlwaysOn));
  pushSteps(10, 30);
  writeControlFile(made, "sometimes");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  CHECK(recorder.mode() == Mode::kAlwaysOn);
  writeControlFile(made, "full");
  CHECK(modeBecomes(Mode::kFull));
  pushSteps(30, 70);
  writeControlFile(made, "off");
  CHECK(modeBecomes(Mode::kOff));
  CHECK(!recorder.enabled());
  recorder.stop();
  const auto content = trace_file::read(made.trace_path);
  CHECK(content.sound);
  CHECK_EQ(content.records.size(), 50u);
  CHECK(holds(summaryOf(content), "\"records\":60,"));
  CHECK(holds(summaryOf(content), "\"mode\":\"off\""));
  recorder.start(made);
  CHECK(recorder.mode() == Mode::kOff);
  recorder.stop();
}

void aStepWithTimeInModeOffIsNotCounted(
    const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  const RecorderOptions made = options(directory, "gap", Mode::kAlwaysOn);
  recorder.start(made);
  const auto endSteps = [&](uint64_t first, uint64_t last) {
    for (uint64_t step = first; step <= last; ++step) {
      Record record;
      record.kind = Kind::kStep;
      record.op_id = step;
      record.aux = 1;
      record.thread = Recorder::threadId();
      record.timestamp_ns = 100 * step;
      recorder.push(record);
    }
  };
  // Step 0 has no begin, and step 1 is warm-up.
  endSteps(0, 2);
  recorder.setMode(Mode::kOff);
  recorder.setMode(Mode::kAlwaysOn);
  endSteps(3, 4);
  recorder.stop();
  const std::string found = summaryOf(trace_file::read(made.trace_path));
  CHECK(holds(found, "\"steps\":{\"count\":2,\"sum\":200,"));
}

void clockRecordsAreKeptForFullMode(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  const RecorderOptions made = options(directory, "clock", Mode::kAlwaysOn);
  recorder.start(made);
  for (uint64_t i = 0; i < 100; ++i) {
    Record record = numbered(i);
    record.kind = Kind::kClock;
    recorder.push(record);
    pushSteps(0, 2);
  }
  recorder.setMode(Mode::kFull);
  recorder.stop();
  const auto content = trace_file::read(made.trace_path);
  CHECK_EQ(content.records.size(), 64u);
  CHECK(trace_file::countUp(content.records, 36));
}

void aSignalSwitchesTheModeAndTheControlFile(
    const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  RecorderOptions made = options(directory, "signal", Mode::kOff);
  made.switch_signal = SIGUSR2;
  recorder.start(made);
  CHECK(!recorder.stats().signal_taken);
  for (const Mode mode : {Mode::kAlwaysOn, Mode::kFull, Mode::kOff}) {
    raise(SIGUSR2);
    CHECK(modeBecomes(mode));
    std::string word;
    CHECK(within5s([&] {
      std::ifstream(made.control_path) >> word;
      return word == modeName(mode);
    }));
  }
  recorder.stop();
  raise(SIGUSR2);
  CHECK_EQ(directory.count(".control"), 3u);
}

void aSignalHandlerOfTheProgramIsKept(const trace_file::Directory& directory) {
  static std::atomic<int> calls{0};
  signal(SIGUSR1, [](int) { ++calls; });
  Recorder& recorder = Recorder::instance();
  RecorderOptions made = options(directory, "taken", Mode::kOff);
  made.switch_signal = SIGUSR1;
  recorder.start(made);
  CHECK(recorder.stats().signal_taken);
  raise(SIGUSR1);
  CHECK_EQ(calls.load(), 1);
  recorder.stop();
}

// The ring has room for 16,384 records. The test waits when the ring is nearly
// full, in case the helper thread has no core.
void aHalfFullRingIsDrainedEarly(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  RecorderOptions made = options(directory, "fast", Mode::kAlwaysOn);
  made.flush_interval_ms = 60'000;
  recorder.start(made);
  const uint64_t count = 100'000;
  uint64_t pushed = 0;
  for (int waits = 0; pushed < count && waits < 4000;) {
    const bool near_end = recorder.stats().records_unwritten > 12'000;
    const uint64_t many = near_end ? 1 : 500;
    pushSteps(pushed, pushed + many);
    pushed += many;
    if (near_end) {
      ++waits;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  CHECK(pushed >= count);
  CHECK(recorder.stats().records_summarised > count / 2);
  CHECK_EQ(recorder.stats().records_dropped, 0u);
  recorder.stop();
}

} // namespace

int main() {
  const trace_file::Directory directory;
  alwaysOnWritesNoRecords(directory);
  offRecordsNothing(directory);
  longPausesOfRecordingAreNoted(directory);
  theControlFileSwitchesTheMode(directory);
  aStepWithTimeInModeOffIsNotCounted(directory);
  clockRecordsAreKeptForFullMode(directory);
  aSignalSwitchesTheModeAndTheControlFile(directory);
  aSignalHandlerOfTheProgramIsKept(directory);
  aHalfFullRingIsDrainedEarly(directory);
  return check::report();
}
