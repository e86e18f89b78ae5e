// One thread that runs what it is given, in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace commprof {

class TaskThread {
 public:
  TaskThread() : thread_([this] { loop(); }) {}
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  // Runs what is still waiting, then ends.
  ~TaskThread() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  // Runs `task` in the calling thread if nothing is waiting or under way, so
  // that its place in the order is now; false and nothing done otherwise.
  bool runHere(const std::function<void()>& task) {
    std::unique_lock lock(mutex_);
    if (busy_ || !tasks_.empty()) {
      return false;
    }
    busy_ = true;
    lock.unlock();
    task();
    lock.lock();
    busy_ = false;
    lock.unlock();
    changed_.notify_one();
    return true;
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(
          lock, [this] { return !busy_ && (stopping_ || !tasks_.empty()); });
      if (tasks_.empty()) {
        return;
      }
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      task();
      lock.lock();
      busy_ = false;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_; // last: starts when all else is there
};

} // namespace commprof
