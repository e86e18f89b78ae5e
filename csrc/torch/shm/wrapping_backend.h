// A c10d backend that hands everything to another one, for those that do a part
// of it themselves.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>
#include <utility>
#include <vector>

namespace commprof {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class WrappingBackend : public c10d::Backend {
 public:
  explicit WrappingBackend(c10::intrusive_ptr<c10d::Backend> wrapped)
      : Backend(wrapped->getRank(), wrapped->getSize()),
        wrapped_(std::move(wrapped)) {}

  c10::intrusive_ptr<Options> getBackendOptions() override {
    return wrapped_->getBackendOptions();
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    wrapped_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {
    wrapped_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return wrapped_->getSequenceNumberForGroup();
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    return wrapped_->allreduce(tensors, options);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options)
      override {
    return wrapped_->broadcast(tensors, options);
  }
  WorkPtr allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return wrapped_->allgather(outputs, inputs, options);
  }
  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    return wrapped_->_allgather_base(output, input, options);
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    return wrapped_->_reduce_scatter_base(output, input, options);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return wrapped_->barrier(options);
  }
  WorkPtr allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override {
    return wrapped_->allreduce_coalesced(tensors, options);
  }
  WorkPtr allreduce_sparse(
      Tensors& tensors,
      const c10d::AllreduceOptions& options) override {
    return wrapped_->allreduce_sparse(tensors, options);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options)
      override {
    return wrapped_->reduce(tensors, options);
  }
  WorkPtr allgather_coalesced(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return wrapped_->allgather_coalesced(outputs, inputs, options);
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return wrapped_->allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr gather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::GatherOptions& options) override {
    return wrapped_->gather(outputs, inputs, options);
  }
  WorkPtr scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ScatterOptions& options) override {
    return wrapped_->scatter(outputs, inputs, options);
  }
  WorkPtr reduce_scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    return wrapped_->reduce_scatter(outputs, inputs, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override {
    return wrapped_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override {
    return wrapped_->alltoall_base(
        output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllToAllOptions& options) override {
    return wrapped_->alltoall(outputs, inputs, options);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all)
      override {
    wrapped_->monitoredBarrier(options, all);
  }
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return wrapped_->send(tensors, peer, tag);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return wrapped_->recv(tensors, peer, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return wrapped_->recvAnysource(tensors, tag);
  }

 protected:
  const c10::intrusive_ptr<c10d::Backend> wrapped_;
};

} // namespace commprof
