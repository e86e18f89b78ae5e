// The recorder writes what a group is before the operations of it, whatever
// threads do in between.
#include <latch>
#include <thread>

#include "check.h"
#include "core/recorder.h"
#include "trace_file.h"

using namespace commprof;

namespace {

constexpr uint32_t kLeastGroups = 100;

// Tells of a group and then records an operation of it, over and over.
void tellAndPush(const std::atomic<bool>& done) {
  Recorder& recorder = Recorder::instance();
  for (uint32_t id = 1; !done || id <= kLeastGroups; ++id) {
    recorder.addGroup({id, "", 0, 1}, "{\"id\": " + std::to_string(id) + "}");
    Record record = trace_file::numbered(id);
    record.group = id;
    recorder.push(record);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Drains wait while another thread gets a ring: the longest that anything can
// come in between.
void drainWhileThreadsGetRings() {
  constexpr int kThreads = 40;
  Recorder& recorder = Recorder::instance();
  std::latch leave(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    std::latch pushed(1);
    threads.emplace_back([&] {
      recorder.push(trace_file::numbered(0));
      pushed.count_down();
      leave.wait();
    });
    recorder.flush();
    pushed.wait();
  }
  leave.count_down();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void groupsComeBeforeTheirOperations(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.start(
      {directory / "groups.trace",
       directory / "groups-",
       "{}",
       /*session=*/1,
       /*ring_capacity=*/1 << 14,
       /*flush_interval_ms=*/5});
  std::atomic<bool> done{false};
  std::thread teller([&] { tellAndPush(done); });
  drainWhileThreadsGetRings();
  done = true;
  teller.join();
  recorder.stop();
  const auto content = trace_file::read(directory / "groups.trace");
  CHECK(content.sound && content.groups.size() >= kLeastGroups);
  size_t early = 0;
  for (size_t i = 0; i < content.records.size(); ++i) {
    const uint32_t group = content.records[i].group;
    early += group != 0 && content.records_before_group.at(group - 1) > i;
  }
  CHECK_EQ(early, 0u);
}

} // namespace

int main() {
  const trace_file::Directory directory;
  groupsComeBeforeTheirOperations(directory);
  return check::report();
}
