#include "torch/capture/ddp/observed_buckets.h"

#include <algorithm>

#include "base/clock.h"
#include "base/fnv1a.h"
#include "core/recorder.h"

namespace commprof {

namespace {

struct Watched {
  std::mutex mutex; // never held while a reducer's mutex is acquired
  std::vector<std::weak_ptr<ObservedBuckets>> models;
  std::atomic<size_t> count{0};
};

Watched& watched() {
  static Watched* w = new Watched(); // autograd's threads may outlive main()
  return *w;
}

std::vector<std::shared_ptr<ObservedBuckets>> watchedModels() {
  Watched& all = watched();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<std::shared_ptr<ObservedBuckets>> found;
  std::erase_if(all.models, [&](const auto& model) {
    found.push_back(model.lock());
    return found.back() == nullptr;
  });
  std::erase(found, nullptr);
  all.count.store(all.models.size(), std::memory_order_relaxed);
  return found;
}

// Largest number of noted all-reduces. Unfinished passes have far fewer.
constexpr size_t kMostNoted = 1 << 14;

// The all-reduces that this thread noted in unfinished backward passes. Several
// passes may be unfinished, because reentrant checkpoints nest passes.
std::vector<NotedAllReduce>& notedHere() {
  static thread_local std::vector<NotedAllReduce> noted;
  return noted;
}

} // namespace

uint64_t signatureOf(const c10d::GradBucket& bucket) {
  Fnv1a hash;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    hash.add(uint64_t(parameter.dim()));
    for (const int64_t extent : parameter.sizes()) {
      hash.add(uint64_t(extent));
    }
  }
  return hash.value();
}

std::shared_ptr<ObservedBuckets> ObservedBuckets::watch(
    const std::shared_ptr<c10d::Reducer>& reducer) {
  std::shared_ptr<ObservedBuckets> model(new ObservedBuckets(reducer));
  Watched& all = watched();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.models.push_back(model);
  all.count.store(all.models.size(), std::memory_order_relaxed);
  return model;
}

void ObservedBuckets::take(std::vector<NotedAllReduce>& noted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bool was_read = false;
  std::erase_if(noted, [&](const NotedAllReduce& one) {
    const bool may_be_new = !settled_ || (one.issue.flags & kSparse) != 0;
    if (!was_read && may_be_new) {
      readBuckets();
      was_read = true;
    }
    return record(one);
  });
}

void ObservedBuckets::readBuckets() {
  buckets_.clear();
  const auto reducer = reducer_.lock();
  if (reducer == nullptr) {
    return;
  }
  for (const c10d::GradBucket& bucket :
       reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
    buckets_[bucket.getBuffer().unsafeGetTensorImpl()] = {
        uint32_t(bucket.getIndex()), bucket.isLast(), signatureOf(bucket)};
  }
  settled_ = !reducer->should_rebuild_buckets();
}

bool ObservedBuckets::record(const NotedAllReduce& noted) const {
  const auto found = buckets_.find(noted.tensor);
  if (found == buckets_.end() || reducer_.expired()) {
    return false;
  }
  if (recording()) {
    // Takes over the sequence number, group and size of the all-reduce.
    Record record = noted.issue;
    record.kind = Kind::kBucket;
    record.aux = found->second.index;
    record.flags = found->second.is_last ? kLastBucket : 0;
    record.bytes_out = found->second.signature;
    record.value = noted.launched_ns;
    Recorder::instance().push(record);
  }
  return true;
}

bool observesBuckets() noexcept {
  return watched().count.load(std::memory_order_relaxed) > 0;
}

void noteAllReduce(const Record& issue, const c10::TensorImpl* tensor) {
  std::vector<NotedAllReduce>& noted = notedHere();
  if (noted.size() >= kMostNoted) { // left over from failed passes
    noted.clear();
  }
  noted.push_back({issue, tensor, nowNs()});
}

void recordObservedBuckets(int graph_task) {
  std::vector<NotedAllReduce>& noted = notedHere();
  const auto first = std::stable_partition(
      noted.begin(), noted.end(), [&](const NotedAllReduce& one) {
        return int(one.issue.value) - 1 != graph_task;
      });
  std::vector<NotedAllReduce> mine(first, noted.end());
  noted.erase(first, noted.end());
  if (mine.empty() || !Recorder::instance().enabled()) {
    return;
  }
  for (const auto& model : watchedModels()) {
    model->take(mine);
  }
}

} // namespace commprof
