#include "torch/shm/threaded_backend.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <stdexcept>
#include <utility>

namespace commprof {

namespace {

using c10d::OpType;
using c10d::Work;

class ShmWork final : public Work {
 public:
  ShmWork(int rank, OpType type, Tensors outputs)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        future_(
            c10::make_intrusive<c10::ivalue::Future>(
                c10::ListType::create(c10::TensorType::get()))) {}

  void run(const std::function<void()>& collective) {
    try {
      collective();
      future_->markCompleted(c10::IValue(outputs_));
      finish();
    } catch (...) {
      future_->setErrorIfNeeded(std::current_exception());
      finish(std::current_exception());
    }
  }

  std::vector<at::Tensor> result() override {
    return outputs_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  const Tensors outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

} // namespace

// In the caller's thread where nothing is before it: a hand-over costs more
// than a small collective.
WorkPtr ThreadedBackend::start(
    OpType type,
    Tensors outputs,
    bool async,
    std::function<void()> collective) {
  auto work = c10::make_intrusive<ShmWork>(rank_, type, std::move(outputs));
  const auto task = [work, run = std::move(collective)] { work->run(run); };
  if ((async || !thread_.runHere(task)) && !thread_.post(task)) {
    throw std::runtime_error(
        "commprof: a forked child cannot use its parent's process group; "
        "call init_process_group in the child");
  }
  return work;
}

} // namespace commprof
