#include "torch/capture/ddp/ddp_hook.h"

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "base/clock.h"
#include "core/recorder.h"
#include "core/wait_returns.h"
#include "torch/capture/ddp/finalize.h"
#include "torch/capture/ddp/mean_all_reduce.h"
#include "torch/capture/ddp/observed_buckets.h"
#include "torch/capture/process_groups.h"
#include "torch/capture/tensor_bytes.h"

namespace commprof {

namespace {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

thread_local uint64_t current_bucket = 0;

FuturePtr runInner(c10d::CommHookInterface& inner, c10d::GradBucket& bucket) {
  struct Reset {
    ~Reset() {
      current_bucket = 0;
    }
  } reset;
  return inner.runHook(bucket);
}

void recordBucketEnd(uint64_t op_id, uint32_t index, bool failed) {
  const uint64_t now_ns = nowNs();
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    return;
  }
  Record record;
  record.kind = Kind::kBucketEnd;
  record.op_id = op_id;
  record.aux = index;
  record.thread = Recorder::threadId();
  record.flags = failed ? kFailed : 0;
  record.timestamp_ns = WaitReturns::instance().completionNs(op_id, now_ns);
  recorder.push(record);
}

} // namespace

uint64_t currentBucket() noexcept {
  return current_bucket;
}

class BucketHook::Registered final : public c10d::CommHookInterface {
 public:
  explicit Registered(std::shared_ptr<BucketHook> hook)
      : hook_(std::move(hook)) {}
  FuturePtr runHook(c10d::GradBucket& bucket) override {
    return hook_->run(bucket);
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return hook_->inner()->parseHookResult(result);
  }

 private:
  const std::shared_ptr<BucketHook> hook_;
};

BucketHook::BucketHook(
    c10::intrusive_ptr<c10d::ProcessGroup> group,
    std::shared_ptr<c10d::CommHookInterface> inner)
    : group_(std::move(group)) {
  setInner(std::move(inner));
}

std::shared_ptr<BucketHook> BucketHook::attach(
    c10d::Reducer& reducer,
    c10::intrusive_ptr<c10d::ProcessGroup> group,
    std::shared_ptr<c10d::CommHookInterface> inner) {
  std::shared_ptr<BucketHook> hook(
      new BucketHook(std::move(group), std::move(inner)));
  reducer.register_comm_hook(std::make_unique<Registered>(hook));
  return hook;
}

void BucketHook::setInner(std::shared_ptr<c10d::CommHookInterface> inner) {
  if (!inner) {
    inner = std::make_shared<MeanAllReduce>(group_);
  }
  const std::lock_guard<std::mutex> lock(inner_mutex_);
  inner_.swap(inner); // the old hook is destroyed without the lock
}

std::shared_ptr<c10d::CommHookInterface> BucketHook::inner() {
  const std::lock_guard<std::mutex> lock(inner_mutex_);
  return inner_;
}

FuturePtr BucketHook::run(c10d::GradBucket& bucket) {
  const auto inner = this->inner();
  // Buckets are counted even while capture is off, because ranks must agree on
  // the numbers.
  const uint32_t seq = next_seq_.fetch_add(1, std::memory_order_relaxed);
  Recorder& recorder = Recorder::instance();
  if (!recording() || !recorder.enabled()) {
    return inner->runHook(bucket);
  }
  Record record;
  record.timestamp_ns = nowNs(); // ready: the bucket has all its gradients
  record.kind = Kind::kBucket;
  record.op_id = recorder.nextOpId();
  record.group = groupInfo(*group_, bucket.getBuffer().device().type()).id;
  record.seq = seq;
  record.thread = Recorder::threadId();
  record.aux = uint32_t(bucket.getIndex());
  record.flags = bucket.isLast() ? kLastBucket : 0;
  record.bytes_in = tensorBytes(bucket.getBuffer());
  record.bytes_out = signatureOf(bucket);
  record.dtype = uint8_t(bucket.getBuffer().scalar_type());
  bracketFinalize();
  current_bucket = record.op_id;
  FuturePtr future = runInner(*inner, bucket);
  record.value = nowNs(); // launched: the exchange has started
  recorder.push(record);
  if (future == nullptr) { // DDP reports this error
    return future;
  }
  future->addCallback(
      [op_id = record.op_id, index = record.aux](c10::ivalue::Future& done) {
        // A device operation's future is complete before the operation ends.
        if (done.devices().empty() || done.hasError()) {
          recordBucketEnd(op_id, index, done.hasError());
        }
      },
      /*uses_future=*/false);
  awaitInPass(future, record.op_id);
  return future;
}

} // namespace commprof
