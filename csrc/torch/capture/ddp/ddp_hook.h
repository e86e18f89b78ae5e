// The DDP communication hook: times every gradient bucket and calls an inner
// hook: the user's, or a plain mean all-reduce.
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

// Shared by the reducer, which owns the hook as long as the model lives, and by
// the user's handle. A reducer accepts one hook and never releases it, so only
// the inner hook can be changed.
class BucketHook {
 public:
  // Registers a hook with `reducer`. If `inner` is null, the hook runs
  // MeanAllReduce over `group`. Throws c10::Error if the reducer already has a
  // hook.
  static std::shared_ptr<BucketHook> attach(
      c10d::Reducer& reducer,
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      std::shared_ptr<c10d::CommHookInterface> inner);

  // Replaces the inner hook from the next bucket on; call it between steps, so
  // that all ranks switch at the same bucket. Null: mean all-reduce.
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
  // Number of buckets so far, recorded or not.
  std::atomic<uint32_t> next_seq_{0};
  // Held only while the pointer is copied. std::atomic<std::shared_ptr> would
  // lock too, and GCC 11 and libc++ do not have it.
  std::mutex inner_mutex_;
  std::shared_ptr<c10d::CommHookInterface> inner_;
  std::atomic<bool> recording_{true};
};

// Returns the op_id of the bucket for which this thread runs the inner hook; 0
// if that bucket is not recorded.
uint64_t currentBucket() noexcept;

} // namespace commprof
