// A Work that records how long waits block the thread or, on a device, the
// stream. It forwards all calls to the backend's Work.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torch/capture/future_waits.h"
#include "torch/device/device_events.h"

namespace commprof {

class TimedWork final : public c10d::Work {
 public:
  // `timeline` is null if no stream waits. If `end_recorded` is false, the end
  // of a wait counts as the operation's completion.
  TimedWork(
      c10::intrusive_ptr<c10d::Work> inner,
      uint64_t op_id,
      Op op,
      bool end_recorded,
      DeviceTimeline* timeline)
      : c10d::Work(-1, inner->retrieveOpType()),
        inner_(std::move(inner)),
        op_id_(op_id),
        op_(op),
        end_recorded_(end_recorded),
        timeline_(timeline) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (timeline_ != nullptr) {
      return recordingStreamWait([&] { return inner_->wait(timeout); });
    }
    WaitTimer timer(op_id_, op_, !end_recorded_);
    const bool complete = inner_->wait(timeout);
    if (complete) {
      timer.completed();
    }
    return complete;
  }
  // Without a device, synchronize() and blockCurrentStream() do not block.
  void synchronize() override {
    recordingStreamWait([this] { inner_->synchronize(); });
  }
  void blockCurrentStream() override {
    recordingStreamWait([this] { inner_->blockCurrentStream(); });
  }

  bool isCompleted() override {
    return inner_->isCompleted();
  }
  bool isSuccess() const override {
    return inner_->isSuccess();
  }
  std::exception_ptr exception() const override {
    return inner_->exception();
  }
  int sourceRank() const override {
    return inner_->sourceRank();
  }
  std::vector<at::Tensor> result() override {
    return inner_->result();
  }
  void abort() override {
    inner_->abort();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return inner_->getFuture();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
  float getDuration() const override {
    return inner_->getDuration();
  }
  uint64_t getSequencenumber() const override {
    return inner_->getSequencenumber();
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  std::chrono::milliseconds getTimeout() const override {
    return inner_->getTimeout();
  }
#endif
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  uint64_t getCompletionKey() const override {
    return inner_->getCompletionKey();
  }
#endif

  AwaitedOp awaited() const noexcept {
    return {op_id_, op_};
  }
  // The backend's Work, which may be a subclass with further methods.
  const c10::intrusive_ptr<c10d::Work>& inner() const noexcept {
    return inner_;
  }

 private:
  template <class Call>
  auto recordingStreamWait(Call call) -> decltype(call()) {
    if (timeline_ == nullptr) {
      return call();
    }
    const WaitTimer timer(op_id_, op_, !end_recorded_);
    const DeviceWait device_wait(timeline_, op_id_, op_);
    return call();
  }

  c10::intrusive_ptr<c10d::Work> inner_;
  const uint64_t op_id_;
  const Op op_;
  const bool end_recorded_;
  DeviceTimeline* const timeline_;
};

} // namespace commprof
