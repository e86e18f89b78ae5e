// The DDP communication hook: times every gradient bucket and carries another
// hook inside it, the user's own or a plain mean all-reduce.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace c10d {
class Reducer;
}

namespace commprof {

// What DDP does without a hook, except that it cannot be fused with the copy
// into the bucket. DDP multiplies by the reciprocal; dividing would differ in
// the last bit where the world size is not a power of two.
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

// Shared by the reducer, which owns the hook for the model's life, and by the
// handle that the user holds. A reducer takes one hook for ever, so changing
// what happens means changing what is inside this one.
class BucketHook {
 public:
  // Registers with `reducer`. `inner` may be null: mean all-reduce over
  // `group`, bit-identical to DDP without a hook. Throws c10::Error if the
  // reducer has a hook already.
  static std::shared_ptr<BucketHook> attach(
      c10d::Reducer& reducer,
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      std::shared_ptr<c10d::CommHookInterface> inner);

  // Takes effect with the next bucket; call between steps, so that all ranks
  // switch at the same bucket. Null: mean all-reduce.
  void setInner(std::shared_ptr<c10d::CommHookInterface> inner);
  // Off: buckets pass to the inner hook unrecorded.
  void setRecording(bool on) noexcept {
    recording_.store(on, std::memory_order_relaxed);
  }
  bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }

 private:
  class Registered;
  BucketHook(
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      std::shared_ptr<c10d::CommHookInterface> inner);
  c10::intrusive_ptr<c10::ivalue::Future> run(c10d::GradBucket& bucket);
  std::shared_ptr<c10d::CommHookInterface> inner();

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  // Around a copy of the pointer alone. GCC 11 and libc++ have no
  // std::atomic<std::shared_ptr>, which takes a lock as well.
  std::atomic<uint32_t> next_seq_{0}; // buckets, captured or not
  std::mutex inner_mutex_;
  std::shared_ptr<c10d::CommHookInterface> inner_;
  std::atomic<bool> recording_{true};
};

// For a hook inside: the op_id of the bucket that this thread runs it for; 0
// where that bucket is not recorded.
uint64_t currentBucket() noexcept;

} // namespace commprof
