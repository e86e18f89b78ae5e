// One thread that runs what it is given, in order, for work that may block: on
// ranks that do not answer, for one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace commprof {

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
