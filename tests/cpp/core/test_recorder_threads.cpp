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
  std::thread([&recorder] { recorder.push(numbered(11)); }).join();
  recorder.stop();
  const auto content = trace_file::read(directory / "bounded.trace");
  CHECK_EQ(content.records.size(), 10u * kRings + 1);
  CHECK_EQ(content.byThread().size(), size_t(kRings) + 1);
  CHECK_EQ(directory.count(".ring"), 0u);
}

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
  // This thread gets no ring, unless it kept a ring from an earlier test.
  recorder.push(numbered(2));
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
      // The object is constructed before the ring, so it is destroyed after the
      // ring.
      (void)&late;
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
  // This test must run while threads still need new rings.
  groupsAreWrittenBeforeTheirOperations(directory);
  pushAtThreadEnd(directory);
  pushWhileStopping(directory);
  stopAndStartRace(directory);
  ringsAreBounded(directory);
  aThreadWithoutARingGetsOneLater(directory);
  return check::report();
}
