#include "tune/torch/compress/compressing_hook.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/clock.h"
#include "core/record.h"
#include "tune/compress/sockets/mesh.h"
#include "tune/torch/compress/c10d_transport.h"
#include "tune/torch/compress/recorded_transport.h"
#include "tune/torch/core.h"

namespace commprof::tune {

namespace {

// Largest number of cached compositions. DDP needs about two for each bucket,
// because it regroups its buckets once.
constexpr size_t kMostCompositions = 1024;

compress::Slot slotOf(
    const at::Tensor& parameter,
    uint32_t number,
    size_t offset) {
  compress::Slot slot;
  slot.parameter = number;
  slot.offset = offset;
  slot.numel = size_t(parameter.numel());
  if (parameter.dim() >= 2 && slot.numel > 0) {
    slot.rows = uint32_t(parameter.size(0));
    slot.cols = uint32_t(slot.numel / slot.rows);
  }
  return slot;
}

std::unique_ptr<compress::Transport> transportOf(
    const CompressingHook::Groups& groups) {
  if (!groups.own) {
    return nullptr;
  }
  auto messages = std::make_unique<C10dTransport>(groups.own);
  if (!groups.mesh) {
    return messages;
  }
  return std::make_unique<RecordedTransport>(
      groups.own,
      std::make_unique<net::SocketTransport>(groups.mesh, std::move(messages)));
}

uint64_t nameBits(const std::string& scheme) {
  uint64_t bits = 0;
  const size_t length = std::min(scheme.find(':'), scheme.size());
  for (size_t i = 0; i < std::min<size_t>(8, length); ++i) {
    bits |= uint64_t(uint8_t(scheme[i])) << (8 * i);
  }
  return bits;
}

uint32_t counted(uint64_t values) {
  return uint32_t(std::min<uint64_t>(values, UINT32_MAX));
}

// Records the spans, compression and quality of a bucket. Records nothing if
// op_id is 0 or capture is off.
void recordReport(
    const compress::BucketReport& report,
    const std::string& scheme,
    uint32_t index,
    uint64_t op_id) {
  if (op_id == 0 || !core().recording()) {
    return;
  }
  Record record;
  record.op_id = op_id;
  record.thread = core().thread_id();
  for (const compress::Span& span : report.spans) {
    record.kind = Kind::kSpan;
    record.*field::kSpanStage = uint32_t(span.stage);
    record.timestamp_ns = span.begin_ns;
    record.*field::kSpanEndNs = span.end_ns;
    core().push(record);
  }
  record.kind = Kind::kCompression;
  record.timestamp_ns = nowNs();
  record.*field::kCompressionIndex = index;
  record.*field::kCompressionPayloadBytes = report.payload_bytes;
  record.*field::kCompressionWireBytes = report.wire_bytes;
  record.*field::kCompressionScheme = nameBits(scheme);
  record.flags = report.nonfinite ? kNonFinite : 0;
  core().push(record);
  if (report.has_quality) {
    record.kind = Kind::kQuality;
    record.*field::kQualitySaturated = counted(report.saturated);
    record.*field::kQualityZeroed = counted(report.zeroed);
    record.*field::kQualityRelativeError =
        std::bit_cast<uint64_t>(report.relative_error);
    record.*field::kQualityCosine = std::bit_cast<uint64_t>(report.cosine);
    record.*field::kQualityResidualRatio =
        std::bit_cast<uint64_t>(report.residual_ratio);
    record.flags = 0;
    core().push(record);
  }
}

// While this object exists, operations that this thread issues count as issued
// by the backward pass `graph_task`.
class WorksFor {
 public:
  explicit WorksFor(int graph_task) noexcept {
    core().works_for(graph_task);
  }
  ~WorksFor() {
    core().works_for(-1);
  }
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;
};

} // namespace

struct Executor::State {
  std::mutex using_compressor; // guards the fields below
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
          : "commprof: this compressor was stopped; attach another with "
            "set_hook(...)");
}

void Executor::refuse(
    uint64_t step,
    uint32_t index,
    const std::string& why) noexcept {
  try {
    // The refusal is queued, because earlier buckets must be exchanged first.
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
    // Ignored: the other ranks run into the timeout.
  }
}

// The caller must hold `using_compressor`.
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
    // Destroys the transports: their threads must end before the interpreter.
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

CompressingHook::CompressingHook(
    Groups groups,
    const std::vector<at::Tensor>& parameters,
    const compress::Options& options,
    std::string label)
    : label_(std::move(label)),
      mean_all_reduce_(groups.model),
      executor_(
          compress::Compressor::make(options),
          {transportOf(groups), std::move(groups.host)},
          groups.model->getRank(),
          label_) {
  for (const at::Tensor& parameter : parameters) {
    number_of_.emplace(
        parameter.unsafeGetTensorImpl(), uint32_t(number_of_.size()));
  }
}

bool CompressingHook::suits(c10d::GradBucket& bucket) {
  const at::Tensor& buffer = bucket.getBuffer();
  if (buffer.layout() == at::kStrided && buffer.is_cpu() &&
      buffer.scalar_type() == at::kFloat && buffer.is_contiguous()) {
    return true;
  }
  if (!warned_) {
    warned_ = true;
    TORCH_WARN(
        "commprof: ",
        label_,
        " compresses only fp32 gradients in CPU memory; buckets of ",
        buffer.layout(),
        " ",
        buffer.scalar_type(),
        " on ",
        buffer.device(),
        " are exchanged uncompressed");
  }
  return false;
}

const std::shared_ptr<const CompressingHook::Composition>& CompressingHook::
    compositionOf(const std::vector<at::Tensor>& parameters) {
  Key key;
  key.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    key.push_back(parameter.unsafeGetTensorImpl());
  }
  const auto found = compositions_.find(key);
  if (found != compositions_.end()) {
    return found->second;
  }
  auto made = std::make_shared<Composition>();
  for (const at::Tensor& parameter : parameters) {
    const auto number = number_of_.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK(
        number != number_of_.end(),
        "commprof: a bucket holds a parameter that the model did not have when "
        "the compressor was attached; attach after the model is complete");
    made->slots.push_back(slotOf(parameter, number->second, made->numel));
    made->numel += made->slots.back().numel;
  }
  made->signature = compress::signatureOf(made->slots);
  if (compositions_.size() >= kMostCompositions) {
    compositions_.clear();
  }
  return compositions_.emplace(std::move(key), std::move(made)).first->second;
}

c10::intrusive_ptr<c10::ivalue::Future> CompressingHook::runHook(
    c10d::GradBucket& bucket) {
  const uint64_t step = step_.load();
  if (bucket.isLast()) { // DDP launches buckets in the order of their indices
    step_.store(step + 1);
  }
  if (!suits(bucket)) {
    return mean_all_reduce_.runHook(bucket);
  }
  const auto index = uint32_t(bucket.getIndex());
  try {
    return submit(bucket, step, index);
  } catch (const c10::Error& error) {
    executor_.refuse(step, index, error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    executor_.refuse(step, index, error.what());
    throw;
  }
}

c10::intrusive_ptr<c10::ivalue::Future> CompressingHook::submit(
    c10d::GradBucket& bucket,
    uint64_t step,
    uint32_t index) {
  const auto composition = compositionOf(bucket.getParameters());
  BucketTask task;
  task.buffer = bucket.getBuffer();
  TORCH_CHECK(
      composition->numel == size_t(task.buffer.numel()),
      "commprof: a bucket has ",
      task.buffer.numel(),
      " values, but its parameters have ",
      composition->numel);
  task.bucket.gradient = task.buffer.mutable_data_ptr<float>();
  task.bucket.numel = composition->numel;
  task.bucket.slots = composition->slots;
  task.bucket.signature = composition->signature;
  task.bucket.step = step;
  task.bucket.index = index;
  task.keeps_slots = composition;
  task.op_id = core().current_bucket();
  task.graph_task = task.op_id ? core().bracket_finalize() : -1;
  task.future =
      c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  auto future = task.future;
  executor_.submit(std::move(task));
  return future;
}

at::Tensor CompressingHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

} // namespace commprof::tune
