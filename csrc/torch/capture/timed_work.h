// A Work that records how long a thread was blocked in wait(), and on a device
// the stream. Everything else is forwarded to the backend's Work.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/clock.h"
#include "core/recorder.h"
#include "torch/device/device_events.h"

namespace commprof {

class TimedWork final : public c10d::Work {
 public:
  // `timeline` is null on a CPU.
  TimedWork(
      c10::intrusive_ptr<c10d::Work> inner,
      uint64_t op_id,
      Op op,
      DeviceTimeline* timeline)
      : c10d::Work(-1, inner->retrieveOpType()),
        inner_(std::move(inner)),
        op_id_(op_id),
        op_(op),
        timeline_(timeline) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const WaitTimer timer(op_id_, op_);
    if (timeline_ != nullptr) {
      const DeviceWait device_wait(timeline_, op_id_, op_);
      return inner_->wait(timeout);
    }
    return inner_->wait(timeout);
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
  void synchronize() override {
    inner_->synchronize();
  }
  void blockCurrentStream() override {
    inner_->blockCurrentStream();
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
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#error "c10d::Work gained virtual functions in torch 2.15: forward them here"
#endif

 private:
  // A wait() that finds the work done blocks nobody and needs no record.
  static constexpr uint64_t kShortestWaitNs = 1000;

  // Records the wait also when wait() throws.
  struct WaitTimer {
    const uint64_t begin_ns = nowNs();
    const uint64_t op_id;
    const Op op;
    WaitTimer(uint64_t id, Op o) : op_id(id), op(o) {}
    ~WaitTimer() {
      const uint64_t end_ns = nowNs();
      Recorder& recorder = Recorder::instance();
      if (!recorder.enabled() ||
          (end_ns - begin_ns < kShortestWaitNs && !isPointToPoint(op))) {
        return;
      }
      Record record;
      record.kind = Kind::kWait;
      record.op = op;
      record.op_id = op_id;
      record.thread = Recorder::threadId();
      record.timestamp_ns = begin_ns;
      record.value = end_ns;
      recorder.push(record);
    }
  };

  c10::intrusive_ptr<c10d::Work> inner_;
  const uint64_t op_id_;
  const Op op_;
  DeviceTimeline* const timeline_;
};

} // namespace commprof
