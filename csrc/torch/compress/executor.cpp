#include "torch/compress/executor.h"

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <stdexcept>
#include <utility>

#include "torch/capture/finalize.h"
#include "torch/compress/compression_records.h"

namespace commprof {

struct Executor::State {
  std::mutex using_compressor; // and of all below
  std::unique_ptr<compress::Compressor> compressor;
  Way way;
  int rank = 0;
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
    Way way,
    int rank,
    std::string scheme)
    : state_(std::make_shared<State>()), thread_("commprof-comp") {
  state_->compressor = std::move(compressor);
  state_->way = std::move(way);
  state_->rank = rank;
  state_->scheme = std::move(scheme);
}

Executor::~Executor() {
  stop(std::chrono::seconds(1));
}

void Executor::submit(BucketTask task) {
  const bool taken =
      thread_.post([state = state_, task = std::move(task)]() mutable {
        run(*state, task);
      });
  if (taken) {
    return;
  }
  throw std::runtime_error(
      thread_.forked()
          ? "commprof: a forked child cannot use its parent's compressor; make "
            "and attach the model in the child"
          : "commprof: this compressor was stopped; set_hook(...) another");
}

void Executor::stop(std::chrono::milliseconds patience) {
  const auto interrupt = [this] {
    if (state_->way.transport) {
      state_->way.transport->interrupt();
    }
  };
  if (thread_.stop(patience, interrupt)) {
    // The group's threads end before the interpreter does.
    const std::lock_guard<std::mutex> lock(state_->using_compressor);
    state_->way = {};
  }
}

void Executor::withCompressor(
    const std::function<void(compress::Compressor&)>& use) {
  const std::lock_guard<std::mutex> lock(state_->using_compressor);
  use(*state_->compressor);
}

void Executor::run(State& state, BucketTask& task) {
  const at::NoGradGuard no_grad;
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> lock(state.using_compressor);
    error = state.first_error;
    if (!error) {
      const WorksFor backward(task.graph_task);
      compress::BucketReport report;
      try {
        Way& way = state.way;
        if (way.host) {
          way.host->run(
              *state.compressor, task.bucket, way.transport.get(), report);
        } else {
          state.compressor->run(task.bucket, *way.transport, report);
        }
        recordReport(report, state.scheme, task.bucket.index, task.op_id);
      } catch (const std::exception& e) {
        error = std::make_exception_ptr(
            withPlace(state.scheme, state.rank, task.bucket, e));
        state.first_error = error;
        if (state.way.transport) {
          state.way.transport->abandon();
        }
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
