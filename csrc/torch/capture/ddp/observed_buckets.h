// The gradient buckets of DDP models that have no hook, known by the tensors
// that DDP all-reduces. A hook would tell them as they come; but beside a hook
// DDP no longer divides while it copies into the bucket, which takes one more
// pass over all gradients.
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

// Tells apart buckets with other parameters, whatever their index: FNV-1a over
// the shapes. DDP regroups its buckets after the first step.
uint64_t signatureOf(const c10d::GradBucket& bucket);

// An all-reduce of a backward pass, and the one tensor that it is of.
struct NotedAllReduce {
  Record issue;
  const c10::TensorImpl* tensor;
  uint64_t launched_ns;
};

// Of one model: its buckets are recorded while this lives.
class ObservedBuckets {
 public:
  // Keeps no reducer alive.
  static std::shared_ptr<ObservedBuckets> watch(
      const std::shared_ptr<c10d::Reducer>& reducer);
  void setRecording(bool on) noexcept {
    recording_.store(on, std::memory_order_relaxed);
  }
  bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  // Those that are this model's are recorded and taken out. Not under the
  // reducer's lock, and without the GIL or with it.
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
  std::mutex mutex_; // around what follows
  // By the tensors that DDP keeps for them; a sparse one is new in each pass.
  std::unordered_map<const c10::TensorImpl*, Bucket> buckets_;
  bool settled_ = false; // DDP cuts them no more
};

// Whether any model's are: without one nothing needs to be noted.
bool observesBuckets() noexcept;

// By the thread that issues it in a backward pass.
void noteAllReduce(const Record& issue, const c10::TensorImpl* tensor);

// What this thread noted in the backward pass, after DDP has finalised it: it
// may cut its buckets anew in the next forward pass, and not before.
void recordObservedBuckets(int graph_task);

} // namespace commprof
