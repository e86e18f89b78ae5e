// Threads of commprof's own in the user's process, and one that runs what it is
// given, in order, for work that may block: on ranks that do not answer, for
// one.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

namespace commprof {

// Starts it with all signals blocked: they belong to the user's threads.
// `name` has at most 15 characters. Throws std::system_error.
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
  // Stops, with a second's patience. Hold no GIL that a task may want.
  ~TaskThread();

  // Whether this is a forked child, where the thread does not exist.
  bool forked() const noexcept;

  // Any thread. False, and nothing done, once stopped or in a forked child.
  bool post(Task task);

  // Runs `task` in the calling thread if nothing is waiting or under way, so
  // that its place in the order is now; false and nothing done otherwise.
  bool runHere(const Task& task);

  // Takes no more tasks and waits for those that it has, but no longer than
  // `patience`; whether it has ended. `hurry`, if there is one, is called where
  // it is late, and it gets as long again. A thread that is still busy then is
  // left alone with all that its tasks hold. Idempotent; does nothing in a
  // forked child.
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
