// A DDP communication hook that times every gradient bucket. It calls an inner
// hook: the user's hook or a mean all-reduce.
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

// A reducer accepts one hook and never releases it, so only the inner hook can
// be changed. The reducer and the user's handle share the ownership.
class BucketHook {
 public:
  // Registers a hook with `reducer`. If `inner` is null, the hook runs
  // MeanAllReduce over `group`. Throws c10::Error if the reducer already has a
  // hook.
  static std::shared_ptr<BucketHook> attach(
      c10d::Reducer& reducer,
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      std::shared_ptr<c10d::CommHookInterface> inner);

  // Sets the inner hook for the next buckets; null: a mean all-reduce. Call it
  // between steps, so that all ranks switch at the same bucket.
  void setInner(std::shared_ptr<c10d::CommHookInterface> inner);
  // If off, buckets are not recorded; the inner hook runs.
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
  // A mutex, because GCC 11 and libc++ do not have
  // std::atomic<std::shared_ptr>.
  std::mutex inner_mutex_;
  std::shared_ptr<c10d::CommHookInterface> inner_;
  std::atomic<bool> recording_{true};
};

// Returns the op_id of the bucket whose inner hook this thread is running.
// Returns 0 if there is no such bucket, or it is not recorded.
uint64_t currentBucket() noexcept;

} // namespace commprof
