// A backend that runs its own part of the collectives one after another: in a
// thread of its own, or in the caller's where that would wait anyway.
#pragma once

#include <functional>

#include "core/task_thread.h"
#include "torch/shm/wrapping_backend.h"

namespace commprof {

class ThreadedBackend : public WrappingBackend {
 public:
  using WrappingBackend::WrappingBackend;

 protected:
  // `collective` may block and throw; what it throws is the Work's error.
  // Throws std::runtime_error in a forked child.
  WorkPtr start(
      c10d::OpType type,
      Tensors outputs,
      bool async,
      std::function<void()> collective);

 private:
  TaskThread thread_{"commprof-shm"};
};

} // namespace commprof
