// A communication hook that does what DDP does by default.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <utility>
#include <vector>

namespace commprof {

// Multiplies by the reciprocal of the world size, as DDP does. A division could
// differ in the last bit.
class MeanAllReduce final : public c10d::CommHookInterface {
 public:
  explicit MeanAllReduce(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : group_(std::move(group)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(
      c10d::GradBucket& bucket) override {
    at::Tensor& buffer = bucket.getBufferRef();
    buffer.mul_(1.0 / group_->getSize());
    std::vector<at::Tensor> tensors{buffer};
    return group_->allreduce(tensors)->getFuture();
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

} // namespace commprof
