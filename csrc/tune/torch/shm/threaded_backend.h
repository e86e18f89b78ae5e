// A backend that runs some collectives itself, one after the other: on a thread
// of its own, or on the caller's thread if the caller would wait anyway.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/threads.h"
#include "tune/shm/team.h"
#include "tune/torch/shm/wrapping_backend.h"

namespace commprof::tune {

class ThreadedBackend : public WrappingBackend {
 public:
  // `team`: the ranks of this host. If a collective fails only on this rank,
  // the team is broken, so that the other ranks fail immediately and do not
  // match this rank's next collective with the failed one.
  ThreadedBackend(
      c10::intrusive_ptr<c10d::Backend> wrapped,
      std::shared_ptr<shm::Team> team)
      : WrappingBackend(std::move(wrapped)), team_(std::move(team)) {}

  const std::string getBackendName() const override {
    return "commprof";
  }
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  // abort() and shutdown() make other ranks that wait for this rank, now or
  // later, fail with an error. Both wait up to a second for the running
  // collectives of this rank.
  void abort() override;
  void shutdown() override;

 protected:
  // Runs `collective`, which may block and throw; its exception becomes the
  // Work's error. It runs with the caller's thread-local state, but below
  // autograd and autocast, like a kernel. Throws std::runtime_error in a forked
  // child, and after shutdown().
  WorkPtr start(
      c10d::OpType type,
      Tensors outputs,
      bool async,
      std::function<void()> collective);
  // Like start(), but the collective also waits for the wrapped backend's
  // collectives that are running now, as gloo's own barrier does.
  WorkPtr startBarrier(bool async, std::function<void()> collective);

  const std::shared_ptr<shm::Team> team_;

  // Called when no collective is running and no other will start. Ends
  // operations that other hosts' ranks may wait for.
  virtual void disconnect() {}

 private:
  void end();

  TaskThread thread_{"commprof-shm"};
};

} // namespace commprof::tune
