// Starts commprof's own threads in the user's process. A TaskThread runs tasks
// in order.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

namespace commprof {

// Starts a thread that blocks all signals, because signals are for the user's
// threads. `name` has at most 15 characters. Throws std::system_error.
template <class Body>
std::unique_ptr<std::thread> startHelper(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::unique_ptr<std::thread> thread;
  try {
    thread = std::make_unique<std::thread>([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name);
      body();
    });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

class TaskThread {
 public:
  using Task = std::function<void()>; // must not throw

  // `name` has at most 15 characters.
  explicit TaskThread(const char* name);
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  // Calls stop() with a patience of 1 s. Release the GIL first if a task may
  // need it.
  ~TaskThread();

  // True in a forked child, in which the thread does not exist.
  bool forked() const noexcept;

  // Any thread. Returns false and does nothing after stop() or in a forked
  // child.
  bool post(Task task);

  // Runs `task` in the calling thread. Returns false and does nothing if
  // another task waits or runs, after stop(), or in a forked child.
  bool runHere(const Task& task);

  // Takes no more tasks, and waits at most `patience` for the present tasks. If
  // they take longer and `hurry` is given, calls `hurry` and waits as long
  // again. A thread that has not ended by then is detached, and keeps all that
  // its tasks hold. Returns true if the thread has ended. Idempotent; does
  // nothing in a forked child.
  bool stop(
      std::chrono::milliseconds patience,
      const std::function<void()>& hurry = {});

 private:
  struct State; // shared with the thread, which may outlive this object
  static void loop(State& state);

  const std::shared_ptr<State> state_;
  std::unique_ptr<std::thread> thread_;
  const int pid_;
};

} // namespace commprof
