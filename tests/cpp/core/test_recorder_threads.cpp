// Tests the recorder with many threads: rings are reused and bounded, stopping
// while others push loses no earlier records, and groups are written before
// their operations.
#include <latch>
#include <thread>

#include "check.h"
#include "core/recorder.h"
#include "trace_file.h"

using namespace commprof;
using trace_file::numbered;

namespace {

RecorderOptions options(
    const trace_file::Directory& directory,
    const std::string& name,
    uint64_t capacity = 1024) {
  return {
      directory / (name + ".trace"),
      directory / (name + "-"),
      "{}",
      /*session=*/1,
      capacity,
      /*flush_interval_ms=*/5};
}

void ringsAreReused(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "reused"));
  for (uint64_t i = 0; i < 500; ++i) {
    std::thread([&recorder, i] { recorder.push(numbered(i)); }).join();
  }
  CHECK_EQ(recorder.stats().rings, 1u);
  CHECK_EQ(directory.count(".ring"), 1u);
  recorder.stop();
  const auto content = trace_file::read(directory / "reused.trace");
  CHECK_EQ(content.records.size(), 500u);
  CHECK(trace_file::countUp(content.records, 0));
}

// 256 of 300 concurrent threads get a ring; the other records are dropped.
void ringsAreBounded(const trace_file::Directory& directory) {
  constexpr int kThreads = 300;
  constexpr int kRings = 256;
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "bounded"));
  std::latch pushed(kThreads);
  std::latch counted(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t n = 0; n < 10; ++n) {
        recorder.push(numbered(n));
      }
      pushed.count_down();
      counted.wait();
    });
  }
  pushed.wait();
  const RecorderStats stats = recorder.stats();
  CHECK_EQ(stats.rings, uint64_t(kRings));
  CHECK_EQ(stats.records_dropped, 10u * (kThreads - kRings));
  counted.count_down();
  for (std::thread& thread : threads) {
    thread.join();
  }
  // Rings were returned: a new thread records again.
  std::thread([&recorder] { recorder.push(numbered(11)); }).join();
  recorder.stop();
  const auto content = trace_file::read(directory / "bounded.trace");
  CHECK_EQ(content.records.size(), 10u * kRings + 1);
  CHECK_EQ(content.byThread().size(), size_t(kRings) + 1);
  CHECK_EQ(directory.count(".ring"), 0u);
}

// A thread that got no ring asks again once one has been returned.
void aThreadWithoutARingGetsOneLater(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "refused"));
  std::latch holding(256);
  std::latch release(1);
  std::vector<std::thread> holders;
  for (int i = 0; i < 256; ++i) {
    holders.emplace_back([&] {
      recorder.push(numbered(1));
      holding.count_down();
      release.wait();
    });
  }
  holding.wait();
  recorder.push(numbered(2)); // refused, or a ring from an earlier test
  release.count_down();
  for (std::thread& thread : holders) {
    thread.join();
  }
  recorder.push(numbered(3));
  recorder.stop();
  const auto own_records = trace_file::read(directory / "refused.trace")
                               .byThread()[Recorder::threadId()];
  CHECK(!own_records.empty() && own_records.back().op_id == 3);
}

// Pushes from the destructor of a thread-local that outlives the thread's ring.
struct PushesAtThreadEnd {
  ~PushesAtThreadEnd() {
    Recorder::instance().push(numbered(1));
  }
};

void pushAtThreadEnd(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "end"));
  const uint64_t rings_before = recorder.stats().rings;
  for (int i = 0; i < 300; ++i) {
    std::thread([&recorder] {
      static thread_local PushesAtThreadEnd late;
      (void)&late; // constructed before the ring, so destroyed after it
      recorder.push(numbered(0));
    }).join();
  }
  CHECK_EQ(recorder.stats().rings, rings_before);
  recorder.stop();
  uint64_t first = 0;
  for (const Record& record :
       trace_file::read(directory / "end.trace").records) {
    first += record.op_id == 0 ? 1 : 0;
  }
  CHECK_EQ(first, 300u);
}

// Threads push as fast as they can while traces open and close around them.
void pushWhileStopping(const trace_file::Directory& directory) {
  constexpr int kSessions = 40;
  Recorder& recorder = Recorder::instance();
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (uint64_t n = 0; !done; ++n) {
        if (recorder.enabled()) {
          recorder.push(numbered(n));
        }
        if (n % 256 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
      }
    });
  }
  for (int i = 0; i < kSessions; ++i) {
    const std::string name = "session" + std::to_string(i);
    recorder.start(options(directory, name, 1 << 12));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    recorder.stop();
    const auto content = trace_file::read(directory / (name + ".trace"));
    CHECK(content.sound);
    CHECK_EQ(content.end.size(), 1u);
    const std::string count = std::to_string(content.records.size());
    CHECK(content.end.at(0).starts_with("{\"records\": " + count + ","));
    uint64_t disordered = 0;
    for (const auto& [thread, records] : content.byThread()) {
      for (size_t r = 1; r < records.size(); ++r) {
        disordered += records[r].op_id <= records[r - 1].op_id ? 1 : 0;
      }
    }
    CHECK_EQ(disordered, 0u);
  }
  done = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Two threads stop and one starts the recorder concurrently.
void stopAndStartRace(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> started{0};
    const auto start = [&](const std::string& name) {
      try {
        recorder.start(options(directory, name));
        ++started;
      } catch (const std::logic_error&) {
      }
    };
    start("race0");
    std::vector<std::thread> threads;
    threads.emplace_back([&] { recorder.stop(); });
    threads.emplace_back([&] { recorder.stop(); });
    threads.emplace_back([&] { start("race1"); });
    threads.emplace_back([&] { recorder.stats(); });
    for (std::thread& thread : threads) {
      thread.join();
    }
    recorder.stop();
    CHECK(started >= 1 && !recorder.started());
    CHECK_EQ(trace_file::read(directory / "race0.trace").end.size(), 1u);
  }
}

constexpr uint32_t kMinGroups = 100;

// Repeatedly adds a group and then records an operation of it.
void addGroupsAndPush(const std::atomic<bool>& done) {
  Recorder& recorder = Recorder::instance();
  for (uint32_t id = 1; !done || id <= kMinGroups; ++id) {
    recorder.addGroup({id, "", 0, 1}, "{\"id\": " + std::to_string(id) + "}");
    Record record = numbered(id);
    record.group = id;
    recorder.push(record);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Drains wait while another thread gets a ring, which is the longest possible
// delay between a group and its operation.
void drainWhileThreadsGetRings() {
  constexpr int kThreads = 40;
  Recorder& recorder = Recorder::instance();
  std::latch leave(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    std::latch pushed(1);
    threads.emplace_back([&] {
      recorder.push(numbered(0));
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

// A group's description is written before its operations, whatever threads do
// meanwhile.
void groupsAreWrittenBeforeTheirOperations(
    const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "groups", 1 << 14));
  std::atomic<bool> done{false};
  std::thread group_adder([&] { addGroupsAndPush(done); });
  drainWhileThreadsGetRings();
  done = true;
  group_adder.join();
  recorder.stop();
  const auto content = trace_file::read(directory / "groups.trace");
  CHECK(content.sound && content.groups.size() >= kMinGroups);
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
  ringsAreReused(directory);
  groupsAreWrittenBeforeTheirOperations(
      directory); // while threads need new rings
  pushAtThreadEnd(directory);
  pushWhileStopping(directory);
  stopAndStartRace(directory);
  ringsAreBounded(directory);
  aThreadWithoutARingGetsOneLater(directory);
  return check::report();
}
