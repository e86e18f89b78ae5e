#include "base/threads.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace commprof {

struct TaskThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool busy = false; // a task runs, in the thread or in runHere()
  bool stopping = false;
  bool finished = false;
};

TaskThread::TaskThread(const char* name)
    : state_(std::make_shared<State>()),
      thread_(startHelper(name, [state = state_] { loop(*state); })),
      pid_(getpid()) {}

TaskThread::~TaskThread() {
  stop(std::chrono::seconds(1));
}

bool TaskThread::forked() const noexcept {
  return getpid() != pid_;
}

bool TaskThread::post(Task task) {
  if (forked()) {
    return false;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->stopping) {
      return false;
    }
    state_->tasks.push_back(std::move(task));
  }
  state_->changed.notify_all();
  return true;
}

bool TaskThread::runHere(const Task& task) {
  if (forked()) {
    return false;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->stopping || state_->busy || !state_->tasks.empty()) {
      return false;
    }
    state_->busy = true;
  }
  task();
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->busy = false;
  }
  state_->changed.notify_all();
  return true;
}

bool TaskThread::stop(
    std::chrono::milliseconds patience,
    const std::function<void()>& hurry) {
  if (forked()) {
    // No join, because the thread does not exist in the child.
    thread_.release();
    return false;
  }
  if (!thread_) {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->finished;
  }
  bool finished = false;
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
    const auto done = [this] { return state_->finished; };
    finished = state_->changed.wait_for(lock, patience, done);
    if (!finished && hurry) {
      lock.unlock();
      hurry();
      lock.lock();
      finished = state_->changed.wait_for(lock, patience, done);
    }
  }
  finished ? thread_->join() : thread_->detach();
  thread_.reset();
  return finished;
}

void TaskThread::loop(State& state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] {
      return !state.busy && (state.stopping || !state.tasks.empty());
    });
    if (state.tasks.empty()) {
      break;
    }
    Task task = std::move(state.tasks.front());
    state.tasks.pop_front();
    state.busy = true;
    lock.unlock();
    task();
    task = nullptr; // destroys the task's content without the lock
    lock.lock();
    state.busy = false;
  }
  state.finished = true;
  state.changed.notify_all();
}

} // namespace commprof
