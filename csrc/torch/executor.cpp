#include "torch/executor.h"

#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "core/helper_thread.h"
#include "torch/c10d_transport.h"
#include "torch/compression_records.h"
#include "torch/finalize.h"

namespace commprof {

struct Executor::State {
  std::mutex mutex; // of what follows, up to `finished`
  std::condition_variable changed;
  std::deque<BucketTask> tasks;
  bool stopping = false;
  bool finished = false;

  std::mutex using_compressor; // and of all below
  std::unique_ptr<compress::Compressor> compressor;
  std::unique_ptr<C10dTransport> transport;
  std::string scheme;
  std::exception_ptr first_error;
};

namespace {

std::runtime_error withPlace(
    const std::string& scheme,
    int rank,
    const compress::Bucket& bucket,
    const std::exception& error) {
  return std::runtime_error(
      "commprof's compressor " + scheme + " failed on rank " +
      std::to_string(rank) + " in bucket " + std::to_string(bucket.index) +
      " of step " + std::to_string(bucket.step) + ": " + error.what());
}

} // namespace

Executor::Executor(
    std::unique_ptr<compress::Compressor> compressor,
    std::unique_ptr<C10dTransport> transport,
    std::string scheme)
    : state_(std::make_shared<State>()), pid_(getpid()) {
  state_->compressor = std::move(compressor);
  state_->transport = std::move(transport);
  state_->scheme = std::move(scheme);
  thread_ = startHelper("commprof-comp", [state = state_] { loop(*state); });
}

Executor::~Executor() {
  stop(std::chrono::seconds(1));
}

void Executor::submit(BucketTask task) {
  if (getpid() != pid_) {
    throw std::runtime_error(
        "commprof: a forked child cannot use its parent's compressor; make and "
        "attach the model in the child");
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->stopping) {
      throw std::runtime_error(
          "commprof: this compressor was stopped; set_hook(...) another");
    }
    state_->tasks.push_back(std::move(task));
  }
  state_->changed.notify_all();
}

void Executor::stop(std::chrono::milliseconds patience) {
  if (!thread_) {
    return;
  }
  if (getpid() != pid_) {
    thread_.release(); // never joinable here: it did not come along
    return;
  }
  bool finished = false;
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
    finished = state_->changed.wait_for(
        lock, patience, [this] { return state_->finished; });
  }
  finished ? thread_->join() : thread_->detach();
  thread_.reset();
  if (finished) { // the group's threads end before the interpreter does
    const std::lock_guard<std::mutex> lock(state_->using_compressor);
    state_->transport.reset();
  }
}

void Executor::withCompressor(
    const std::function<void(compress::Compressor&)>& use) {
  const std::lock_guard<std::mutex> lock(state_->using_compressor);
  use(*state_->compressor);
}

void Executor::loop(State& state) {
  const at::NoGradGuard no_grad;
  std::unique_lock<std::mutex> lock(state.mutex);
  for (;;) {
    state.changed.wait(
        lock, [&] { return state.stopping || !state.tasks.empty(); });
    if (state.tasks.empty()) {
      break;
    }
    BucketTask task = std::move(state.tasks.front());
    state.tasks.pop_front();
    lock.unlock();
    run(state, task);
    task = BucketTask(); // outside of the lock
    lock.lock();
  }
  state.finished = true;
  state.changed.notify_all();
}

void Executor::run(State& state, BucketTask& task) {
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> lock(state.using_compressor);
    error = state.first_error;
    if (!error) {
      const WorksFor backward(task.graph_task);
      compress::BucketReport report;
      try {
        state.compressor->run(task.bucket, *state.transport, report);
        recordReport(report, state.scheme, task.bucket.index, task.op_id);
      } catch (const std::exception& e) {
        const int rank = state.transport->rank();
        error = std::make_exception_ptr(
            withPlace(state.scheme, rank, task.bucket, e));
        state.first_error = error;
      }
    }
  }
  if (error) {
    task.future->setErrorIfNeeded(error);
  } else {
    task.future->markCompleted(at::Tensor(std::move(task.buffer)));
  }
}

} // namespace commprof
