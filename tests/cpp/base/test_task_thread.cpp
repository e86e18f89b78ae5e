#include "base/threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "check.h"

using commprof::TaskThread;
using std::chrono::milliseconds;

namespace {

void tasksRunInOrder() {
  std::vector<int> seen;
  TaskThread thread("test-tasks");
  for (int i = 0; i < 1000; ++i) {
    CHECK(thread.post([&seen, i] { seen.push_back(i); }));
  }
  CHECK(thread.stop(milliseconds(10000)));
  CHECK_EQ(seen.size(), size_t(1000));
  for (int i = 0; i < 1000; ++i) {
    CHECK_EQ(seen[size_t(i)], i);
  }
  CHECK(!thread.post([] {}));
  CHECK(!thread.runHere([] {}));
}

void runHereRunsOnlyIfNoTaskIsPending() {
  TaskThread thread("test-tasks");
  const pid_t caller_id = gettid();
  CHECK(thread.runHere([caller_id] { CHECK_EQ(gettid(), caller_id); }));
  std::promise<void> begun, release;
  thread.post([&] {
    begun.set_value();
    release.get_future().wait();
  });
  begun.get_future().wait();
  CHECK(!thread.runHere([] { CHECK(false); }));
  std::atomic<bool> done{false};
  thread.post([&] { done = true; });
  release.set_value();
  CHECK(thread.stop(milliseconds(10000)));
  CHECK(done);
}

void postedTasksWaitForATaskThatRunsHere() {
  TaskThread thread("test-tasks");
  bool posted_ran = false;
  CHECK(thread.runHere([&] {
    thread.post([&] { posted_ran = true; });
    usleep(20000);
    CHECK(!posted_ran);
  }));
  CHECK(thread.stop(milliseconds(10000)));
  CHECK(posted_ran);
}

void stopAbandonsABusyThread() {
  const auto release = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::promise<void>>();
  {
    TaskThread thread("test-tasks");
    thread.post([release, ended] {
      release->get_future().wait();
      ended->set_value();
    });
    CHECK(!thread.stop(milliseconds(10)));
  }
  release->set_value();
  ended->get_future().wait();
}

void callsFailInAForkedChild() {
  TaskThread thread("test-tasks");
  CHECK(!thread.forked());
  const pid_t child = fork();
  if (child == 0) {
    const bool all_calls_fail = thread.forked() && !thread.post([] {}) &&
        !thread.runHere([] {}) && !thread.stop(milliseconds(10000));
    _exit(all_calls_fail ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

} // namespace

int main() {
  tasksRunInOrder();
  runHereRunsOnlyIfNoTaskIsPending();
  postedTasksWaitForATaskThatRunsHere();
  stopAbandonsABusyThread();
  callsFailInAForkedChild();
  return check::report();
}
