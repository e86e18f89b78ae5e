// A backend that runs its own part of the collectives one after another: in a
// thread of its own, or in the caller's where that would wait anyway.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/threads.h"
#include "shm/team.h"
#include "torch/shm/wrapping_backend.h"

namespace commprof {

class ThreadedBackend : public WrappingBackend {
 public:
  // `team`: the ranks of this host. A collective that fails on this rank alone
  // breaks it, so that the others hear of it at once, and do not take this
  // rank's next collective for this one.
  ThreadedBackend(
      c10::intrusive_ptr<c10d::Backend> wrapped,
      std::shared_ptr<shm::Team> team)
      : WrappingBackend(std::move(wrapped)), team_(std::move(team)) {}

  const std::string getBackendName() const override {
    return "commprof";
  }
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  // Other ranks that wait for this one, now or later, get an error. Both wait
  // for what is under way here, with a second's patience.
  void abort() override;
  void shutdown() override;

 protected:
  // `collective` may block and throw; what it throws is the Work's error. It
  // runs with the caller's thread-local state, and its operations on tensors
  // below autograd and autocast, as those of a kernel do. Throws
  // std::runtime_error in a forked child, and after shutdown().
  WorkPtr start(
      c10d::OpType type,
      Tensors outputs,
      bool async,
      std::function<void()> collective);
  // Its collective also waits for those of the wrapped backend that are under
  // way now, as gloo's own barrier does.
  WorkPtr startBarrier(bool async, std::function<void()> collective);

  const std::shared_ptr<shm::Team> team_;

  // No collective is under way, and none will be. Ends what other hosts' ranks
  // may wait for.
  virtual void disconnect() {}

 private:
  void end();

  TaskThread thread_{"commprof-shm"};
};

} // namespace commprof
