#include "tune/torch/shm/threaded_backend.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <stdexcept>
#include <utility>

#include "tune/torch/error_reason.h"

namespace commprof::tune {

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

// While this object exists, the thread runs below autograd and autocast, like a
// kernel. So it may write any of the caller's tensors.
struct AsKernel {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{
      c10::autocast_dispatch_keyset};
};

} // namespace

void ThreadedBackend::setTimeout(std::chrono::milliseconds timeout) {
  team_->setTimeout(timeout);
  WrappingBackend::setTimeout(timeout);
}

c10d::ErrorType ThreadedBackend::getError() {
  return team_->broken() ? c10d::ErrorType::COMM_ERROR
                         : c10d::ErrorType::SUCCESS;
}

void ThreadedBackend::abort() {
  team_->abandon("abort() was called on its process group");
  end();
  WrappingBackend::abort();
}

void ThreadedBackend::shutdown() {
  end();
  team_->leave();
  WrappingBackend::shutdown();
}

void ThreadedBackend::end() {
  if (thread_.stop(std::chrono::seconds(1))) {
    disconnect();
  }
}

// A synchronous collective runs in the caller's thread if the queue is empty: a
// hand-over to the other thread costs more than a small collective.
WorkPtr ThreadedBackend::start(
    OpType type,
    Tensors outputs,
    bool async,
    std::function<void()> collective) {
  const auto guarded = [team = team_, run = std::move(collective)] {
    try {
      const AsKernel kernel;
      run();
    } catch (const shm::TeamError&) {
      throw; // all ranks of the host receive this error
    } catch (const std::exception& error) {
      team->abandon(reasonOf(error));
      throw;
    }
  };
  auto work = c10::make_intrusive<ShmWork>(rank_, type, std::move(outputs));
  if (!async && thread_.runHere([&] { work->run(guarded); })) {
    return work;
  }
  const bool taken =
      thread_.post([work, guarded, caller = at::ThreadLocalState()] {
        const at::ThreadLocalStateGuard as_caller(caller);
        work->run(guarded);
      });
  if (!taken) {
    throw std::runtime_error(
        thread_.forked()
            ? "commprof: a forked child cannot use its parent's process group; "
              "call init_process_group in the child"
            : "commprof: this process group was shut down");
  }
  return work;
}

WorkPtr ThreadedBackend::startBarrier(
    bool async,
    std::function<void()> collective) {
  return start(
      OpType::BARRIER,
      {},
      async,
      [pending = underWay(), run = std::move(collective)] {
        for (const WorkPtr& work : pending) {
          work->wait();
        }
        run();
      });
}

} // namespace commprof::tune
