#include "torch/compress/compressing_hook.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <utility>

#include "compress/sockets/mesh.h"
#include "torch/capture/ddp/ddp_hook.h"
#include "torch/capture/ddp/finalize.h"
#include "torch/compress/c10d_transport.h"
#include "torch/compress/recorded_transport.h"

namespace commprof {

namespace {

// Cached per composition, of which DDP makes a handful: one before it regroups
// its buckets and one after.
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

} // namespace

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
        " compresses fp32 gradients in the CPU's memory; buckets of ",
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
      " values and its parameters ",
      composition->numel);
  task.bucket.gradient = task.buffer.mutable_data_ptr<float>();
  task.bucket.numel = composition->numel;
  task.bucket.slots = composition->slots;
  task.bucket.signature = composition->signature;
  task.bucket.step = step;
  task.bucket.index = index;
  task.keeps_slots = composition;
  task.op_id = currentBucket();
  task.graph_task = task.op_id ? bracketFinalize() : -1;
  task.future =
      c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  auto future = task.future;
  executor_.submit(std::move(task));
  return future;
}

at::Tensor CompressingHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

} // namespace commprof
