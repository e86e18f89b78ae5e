#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "core/recorder.h"
#include "trace_file.h"

using namespace commprof;
using trace_file::numbered;

// In GCC 12, the address sanitizer does not take its allocator's locks before
// fork(). A lock that a helper thread held stays locked in the child.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kChildMayAllocate = false;
#else
constexpr bool kChildMayAllocate = true;
#endif

// The thread sanitizer crashes if a forked child of a process with threads
// starts a thread. A recording child starts a thread.
#ifdef __SANITIZE_THREAD__
constexpr bool kChildMayRecord = false;
#else
constexpr bool kChildMayRecord = kChildMayAllocate;
#endif

// In a forked child, the thread sanitizer reports the parent's threads as
// leaks.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_options() {
  return "report_thread_leaks=0";
}

// The address sanitizer's quarantine takes locks in most calls of free(). These
// locks may stay locked in a child.
extern "C" __attribute__((visibility("default"))) const char*
__asan_default_options() {
  return "quarantine_size_mb=0:thread_local_quarantine_size_kb=0";
}

namespace {

using namespace std::chrono_literals;

std::atomic<int64_t> write_takes_ms{0};
std::atomic<int> writes{0};

} // namespace

// This function replaces the C library's pwrite().
extern "C" ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  ++writes;
  std::this_thread::sleep_for(std::chrono::milliseconds(write_takes_ms));
  return syscall(SYS_pwrite64, fd, data, bytes, at);
}

namespace {

RecorderOptions options(
    const trace_file::Directory& directory,
    const std::string& name,
    uint64_t session) {
  return {
      directory / (name + ".trace"),
      directory / (name + "-"),
      "{}",
      session,
      /*ring_capacity=*/1024,
      /*flush_interval_ms=*/5};
}

std::string bytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void childHasNoTrace(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  CHECK(!recorder.enabled() && !recorder.started());
  const std::string ring = bytesOf(directory / "parent-0.ring");
  const std::string trace = bytesOf(directory / "parent.trace");
  for (uint64_t i = 0; i < 50; ++i) {
    recorder.push(numbered(i));
  }
  recorder.flush();
  recorder.stop();
  CHECK_EQ(recorder.stats().records_written, 0u);
  CHECK_EQ(recorder.stats().rings, 0u);
  CHECK(ring.size() > 256 && bytesOf(directory / "parent-0.ring") == ring);
  CHECK(bytesOf(directory / "parent.trace").starts_with(trace));
}

void childStartsItsOwnTrace(
    const trace_file::Directory& directory,
    size_t groups) {
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "child", 2));
  for (uint64_t i = 0; i < 10; ++i) {
    recorder.push(numbered(i));
  }
  std::thread([&] { recorder.push(numbered(10)); }).join();
  CHECK_EQ(recorder.stats().rings, 1u + 1u);
  recorder.stop();
  const auto content = trace_file::read(directory / "child.trace");
  CHECK(content.sound);
  CHECK_EQ(Recorder::threadId(), uint32_t(getpid()));
  CHECK_EQ(content.session, 2u);
  CHECK_EQ(content.groups.size(), groups);
  CHECK_EQ(content.records.size(), 11u);
  for (int i = 0; i < 5; ++i) {
    recorder.start(options(directory, "child", 3));
    recorder.stop();
  }
}

template <class Child>
void forked(Child&& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    check::failed = 0;
    child();
    _exit(check::failed == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  CHECK_EQ(status, 0);
}

struct Counting {
  uint64_t next = 0;
  void push(int count) {
    for (int i = 0; i < count; ++i) {
      Recorder::instance().push(numbered(next++));
    }
  }
};

uint64_t forkWhileOthersPush(Counting& this_thread_count) {
  std::atomic<bool> done{false};
  Counting other_thread_count;
  std::thread busy([&] {
    do {
      other_thread_count.push(100);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (!done);
  });
  for (int i = 0; i < 20; ++i) {
    forked([&] {
      Counting().push(10);
      CHECK(!Recorder::instance().started());
    });
    this_thread_count.push(10);
  }
  done = true;
  busy.join();
  return other_thread_count.next;
}

void forkDuringATrace(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.addDocument(BlockType::kGroup, "{\"id\": 1}");
  recorder.start(options(directory, "parent", 1));
  Counting this_thread_count;
  this_thread_count.push(100);
  recorder.flush();
  forked([&] {
    CHECK(!recorder.enabled() && !recorder.started());
    if (kChildMayAllocate) {
      childHasNoTrace(directory);
    }
    if (kChildMayRecord) {
      childStartsItsOwnTrace(directory, 1);
    }
  });
  CHECK(std::filesystem::exists(directory / "parent-0.ring"));
  this_thread_count.push(100);
  const uint64_t pushed_by_other = forkWhileOthersPush(this_thread_count);
  recorder.stop();

  const auto content = trace_file::read(directory / "parent.trace");
  CHECK(content.sound);
  auto threads = content.byThread();
  CHECK_EQ(threads.size(), 2u);
  CHECK_EQ(threads[Recorder::threadId()].size(), 400u);
  CHECK(trace_file::countUp(threads[Recorder::threadId()], 0));
  CHECK_EQ(
      content.records.size() + recorder.stats().records_dropped,
      400 + pushed_by_other);
}

void forkWhileTheParentStops(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  for (int i = 0; i < 20; ++i) {
    recorder.start(options(directory, "stopping", 1));
    recorder.push(numbered(1));
    std::thread stopper([&] { recorder.stop(); });
    forked([&] {
      CHECK(!recorder.started());
      if (!kChildMayRecord) {
        return;
      }
      recorder.start(options(directory, "stopped", 2));
      recorder.push(numbered(1));
      recorder.stop();
      CHECK_EQ(
          trace_file::read(directory / "stopped.trace").records.size(), 1u);
    });
    stopper.join();
    CHECK_EQ(trace_file::read(directory / "stopping.trace").end.size(), 1u);
  }
}

template <class Call>
void checkTakesUnder1s(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
}

void callersDoNotWaitForASlowDisk(const trace_file::Directory& directory) {
  Recorder& recorder = Recorder::instance();
  recorder.start(options(directory, "slow", 4));
  const int before = writes;
  write_takes_ms = 5000;
  recorder.push(numbered(0));
  while (writes == before) {
    std::this_thread::sleep_for(1ms);
  }
  checkTakesUnder1s(
      [&] { recorder.addGroup({9, "late", 0, 2}, "{\"id\": 9}"); });
  recorder.push(numbered(1));
  checkTakesUnder1s([&] { CHECK_EQ(recorder.stats().records_unwritten, 2u); });
  checkTakesUnder1s([&] { recorder.setBoard(nullptr, 0); });
  checkTakesUnder1s([&] {
    forked([&] {
      write_takes_ms = 0;
      CHECK(!recorder.started());
      if (kChildMayRecord) {
        childStartsItsOwnTrace(directory, 2);
      }
    });
  });
  write_takes_ms = 0;
  recorder.stop();
  const auto content = trace_file::read(directory / "slow.trace");
  CHECK(content.sound);
  CHECK_EQ(content.groups.back(), "{\"id\": 9}");
  CHECK_EQ(content.records.size(), 2u);
}

} // namespace

int main() {
  const trace_file::Directory directory;
  forkDuringATrace(directory);
  callersDoNotWaitForASlowDisk(directory);
  forkWhileTheParentStops(directory);
  CHECK_EQ(directory.count(".ring"), 0u);
  return check::report();
}
