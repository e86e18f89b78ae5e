// A backend that runs some collectives itself, one after another. They run on a
// thread of its own, or on the caller's thread if the caller waits anyway.
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
  // the team is broken, so that the other ranks fail immediately.
  ThreadedBackend(
      c10::intrusive_ptr<c10d::Backend> wrapped,
      std::shared_ptr<shm::Team> team)
      : WrappingBackend(std::move(wrapped)), team_(std::move(team)) {}

  const std::string getBackendName() const override {
    return "commprof";
  }
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  // After abort() or shutdown(), other ranks that wait for this rank get an
  // error. Both functions wait up to a second for this rank's running
  // collectives.
  void abort() override;
  void shutdown() override;

 protected:
  // Runs `collective`, which may block. An exception of `collective` becomes
  // the Work's error. `collective` runs with the caller's thread-local state,
  // but below autograd and autocast, like a kernel. start() throws
  // std::runtime_error in a forked child and after shutdown().
  WorkPtr start(
      c10d::OpType type,
      Tensors outputs,
      bool async,
      std::function<void()> collective);
  // Like start(), but the collective also waits for the wrapped backend's
  // collectives that are running now, as gloo's own barrier does.
  WorkPtr startBarrier(bool async, std::function<void()> collective);

  const std::shared_ptr<shm::Team> team_;

  // Called after the last collective. Closes connections to other hosts, so
  // that their ranks do not wait.
  virtual void disconnect() {}

 private:
  void end();

  TaskThread thread_{"commprof-shm"};
};

} // namespace commprof::tune
