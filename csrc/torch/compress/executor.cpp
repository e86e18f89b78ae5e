#include "torch/compress/executor.h"

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "torch/capture/ddp/finalize.h"
#include "torch/compress/compression_records.h"

namespace commprof {

struct Executor::State {
  std::mutex using_compressor; // and of all below
  std::unique_ptr<compress::Compressor> compressor;
  Exchange exchange;
  int rank = 0;
  std::string scheme;
  std::exception_ptr first_error;
};

Executor::Executor(
    std::unique_ptr<compress::Compressor> compressor,
    Exchange exchange,
    int rank,
    std::string scheme)
    : state_(std::make_shared<State>()), thread_("commprof-comp") {
  state_->compressor = std::move(compressor);
  state_->exchange = std::move(exchange);
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

void Executor::refuse(
    uint64_t step,
    uint32_t index,
    const std::string& why) noexcept {
  try {
    // In its turn: the buckets before it are on their way on all ranks.
    thread_.post([state = state_, step, index, why] {
      const std::lock_guard<std::mutex> lock(state->using_compressor);
      if (!state->first_error) {
        giveUp(*state, step, index, why);
        if (state->exchange.host) {
          state->exchange.host->abandon(why);
        }
      }
    });
  } catch (const std::bad_alloc&) {
    // The others wait for the timeout.
  }
}

// Holds `using_compressor`.
void Executor::giveUp(
    State& state,
    uint64_t step,
    uint32_t index,
    const std::string& why) {
  state.first_error = std::make_exception_ptr(
      std::runtime_error(
          "commprof's compressor " + state.scheme + " failed on rank " +
          std::to_string(state.rank) + " in bucket " + std::to_string(index) +
          " of step " + std::to_string(step) + ": " + why));
  if (state.exchange.transport) {
    state.exchange.transport->abandon();
  }
}

void Executor::stop(std::chrono::milliseconds patience) {
  const auto interrupt = [this] {
    if (state_->exchange.transport) {
      state_->exchange.transport->interrupt();
    }
  };
  if (thread_.stop(patience, interrupt)) {
    // The group's threads end before the interpreter does.
    const std::lock_guard<std::mutex> lock(state_->using_compressor);
    state_->exchange = {};
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
        Exchange& exchange = state.exchange;
        if (exchange.host) {
          exchange.host->run(
              *state.compressor, task.bucket, exchange.transport.get(), report);
        } else {
          state.compressor->run(task.bucket, *exchange.transport, report);
        }
        recordReport(report, state.scheme, task.bucket.index, task.op_id);
      } catch (const std::exception& e) {
        giveUp(state, task.bucket.step, task.bucket.index, e.what());
        error = state.first_error;
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
