// Observes the gradient buckets of DDP models without a hook. Recognises
// buckets by the tensors that DDP all-reduces. A hook would cost one more pass
// over all gradients, because DDP then does not divide while it copies into the
// bucket.
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/record.h"

namespace commprof {

// Returns an FNV-1a hash of the shapes of a bucket's parameters. Two buckets
// may have the same index, because DDP regroups its buckets after the first
// step.
uint64_t signatureOf(const c10d::GradBucket& bucket);

// An all-reduce of a backward pass, and its only tensor.
struct NotedAllReduce {
  Record issue;
  const c10::TensorImpl* tensor;
  uint64_t launched_ns;
};

// Records the buckets of one model while the object lives.
class ObservedBuckets {
 public:
  // Observes a reducer, without keeping it alive.
  static std::shared_ptr<ObservedBuckets> watch(
      const std::shared_ptr<c10d::Reducer>& reducer);
  void setRecording(bool on) noexcept {
    recording_.store(on, std::memory_order_relaxed);
  }
  bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  // Records this model's buckets among the all-reduces in `noted`, and removes
  // them from `noted`. Call it without the reducer's lock. The caller may hold
  // the GIL or not.
  void take(std::vector<NotedAllReduce>& noted);

 private:
  struct Bucket {
    uint32_t index;
    bool is_last;
    uint64_t signature;
  };
  explicit ObservedBuckets(std::weak_ptr<c10d::Reducer> reducer)
      : reducer_(std::move(reducer)) {}
  void readBuckets();
  bool record(const NotedAllReduce& noted) const;

  const std::weak_ptr<c10d::Reducer> reducer_;
  std::atomic<bool> recording_{true};
  std::mutex mutex_; // guards the fields below
  // Keyed by the buckets' tensors. A sparse bucket gets a new tensor in each
  // pass.
  std::unordered_map<const c10::TensorImpl*, Bucket> buckets_;
  bool settled_ = false; // DDP will not regroup the buckets any more
};

// True if any model is observed; else all-reduces need not be noted.
bool observesBuckets() noexcept;

// Notes an all-reduce; called by the thread that issues it in a backward pass.
void noteAllReduce(const Record& issue, const c10::TensorImpl* tensor);

// Records the buckets among the all-reduces that this thread noted in the
// backward pass. Call it after DDP has finalised the pass, and before the next
// forward pass, in which DDP may regroup its buckets.
void recordObservedBuckets(int graph_task);

} // namespace commprof
