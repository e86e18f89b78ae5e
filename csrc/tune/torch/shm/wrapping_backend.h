// Base class of c10d backends that run some operations themselves. It forwards
// operations to another backend.
// tests/unit/tune/shm/test_backend_virtuals.py lists the functions of c10d that
// are not forwarded.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace commprof::tune {

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
  bool supportsCoalescing() const override {
    return wrapped_->supportsCoalescing();
  }
  bool supportsTimeEstimation() const override {
    return wrapped_->supportsTimeEstimation();
  }
  void startCoalescing() override {
    wrapped_->startCoalescing();
  }
  WorkPtr endCoalescing() override {
    return started(wrapped_->endCoalescing());
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    wrapped_->setTimeout(timeout);
  }
  void abort() override {
    wrapped_->abort();
  }
  void shutdown() override {
    wrapped_->shutdown();
  }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    wrapped_->setGroupUid(uid);
  }
  void eagerConnectSingleDevice(at::Device device) override {
    wrapped_->eagerConnectSingleDevice(device);
  }
  void enableCollectivesTiming() override {
    wrapped_->enableCollectivesTiming();
  }
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    wrapped_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override {
    wrapped_->waitForPendingWorks();
  }
  std::shared_ptr<c10::Allocator> getMemAllocator() override {
    return wrapped_->getMemAllocator();
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return wrapped_->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return wrapped_->supportsTensorAlloc(device);
  }
  void setSequenceNumberForGroup() override {
    wrapped_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return wrapped_->getSequenceNumberForGroup();
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    return started(wrapped_->allreduce(tensors, options));
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options)
      override {
    return started(wrapped_->broadcast(tensors, options));
  }
  WorkPtr allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return started(wrapped_->allgather(outputs, inputs, options));
  }
  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    return started(wrapped_->_allgather_base(output, input, options));
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    return started(wrapped_->_reduce_scatter_base(output, input, options));
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return started(wrapped_->barrier(options));
  }
  WorkPtr allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override {
    return started(wrapped_->allreduce_coalesced(tensors, options));
  }
  WorkPtr allreduce_sparse(
      Tensors& tensors,
      const c10d::AllreduceOptions& options) override {
    return started(wrapped_->allreduce_sparse(tensors, options));
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options)
      override {
    return started(wrapped_->reduce(tensors, options));
  }
  WorkPtr allgather_coalesced(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return started(wrapped_->allgather_coalesced(outputs, inputs, options));
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return started(
        wrapped_->allgather_into_tensor_coalesced(outputs, inputs, options));
  }
  WorkPtr gather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::GatherOptions& options) override {
    return started(wrapped_->gather(outputs, inputs, options));
  }
  WorkPtr scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ScatterOptions& options) override {
    return started(wrapped_->scatter(outputs, inputs, options));
  }
  WorkPtr reduce_scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    return started(wrapped_->reduce_scatter(outputs, inputs, options));
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override {
    return started(
        wrapped_->reduce_scatter_tensor_coalesced(outputs, inputs, options));
  }
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override {
    return started(wrapped_->alltoall_base(
        output, input, output_splits, input_splits, options));
  }
  WorkPtr alltoall(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllToAllOptions& options) override {
    return started(wrapped_->alltoall(outputs, inputs, options));
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
  // Stores a collective, so that barriers can wait for it, and returns the
  // collective. Messages are not stored.
  WorkPtr started(WorkPtr work) {
    if (work) {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::erase_if(started_, [](const auto& one) {
        const WorkPtr held = one.lock();
        return !held || held->isCompleted();
      });
      started_.emplace_back(work);
    }
    return work;
  }
  // Returns the wrapped backend's collectives that are not complete.
  std::vector<WorkPtr> underWay() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<WorkPtr> works;
    for (const auto& one : started_) {
      WorkPtr held = one.lock();
      if (held && !held->isCompleted()) {
        works.push_back(std::move(held));
      }
    }
    return works;
  }

  const c10::intrusive_ptr<c10d::Backend> wrapped_;

 private:
  std::mutex mutex_;
  // Weak references, so that Works without other owners are freed.
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> started_;
};

} // namespace commprof::tune
