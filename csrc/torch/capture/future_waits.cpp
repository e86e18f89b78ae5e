#include "torch/capture/future_waits.h"

#include <pthread.h>

#include <mutex>
#include <optional>
#include <unordered_map>

namespace commprof {

namespace {

using c10::ivalue::Future;

constexpr size_t kMostFutures = 4096;

class FutureTable {
 public:
  bool add(const c10::intrusive_ptr<Future>& future, AwaitedOp op) {
    Entry entry{op, c10::weak_intrusive_ptr<Future>(future)};
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_.size() < kMostFutures &&
        entries_.try_emplace(future.get(), std::move(entry)).second;
  }

  std::optional<AwaitedOp> find(const Future& future) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(&future);
    return found == entries_.end() ? std::nullopt
                                   : std::optional<AwaitedOp>(found->second.op);
  }

  void remove(const Future& future) {
    Entries::node_type gone; // destroyed after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    gone = entries_.extract(&future);
  }

 private:
  struct Entry {
    AwaitedOp op;
    // Prevents the reuse of the future's address.
    c10::weak_intrusive_ptr<Future> future;
  };
  using Entries = std::unordered_map<const Future*, Entry>;

  std::mutex mutex_;
  Entries entries_;
};

FutureTable& futureTable() {
  static FutureTable* t = [] {
    pthread_atfork(
        nullptr, nullptr, [] { new (&futureTable()) FutureTable(); });
    return new FutureTable(); // late callbacks may outlive static objects
  }();
  return *t;
}

} // namespace

void noteFuture(const c10::intrusive_ptr<Future>& future, AwaitedOp op) {
  if (future->completed() || !futureTable().add(future, op)) {
    return;
  }
  // The callback runs immediately if the future is already complete.
  future->addCallback(
      [](Future& done) { futureTable().remove(done); }, /*uses_future=*/false);
}

void followFutures(
    const c10::intrusive_ptr<Future>& child,
    const std::vector<c10::intrusive_ptr<Future>>& parents) {
  for (auto parent = parents.rbegin(); parent != parents.rend(); ++parent) {
    if (const auto op = futureTable().find(**parent)) {
      noteFuture(child, *op);
      return;
    }
  }
}

void waitForFuture(Future& future) {
  if (const auto awaited = futureTable().find(future)) {
    WaitTimer timer(awaited->op_id, awaited->op);
    future.wait();
    timer.completed();
  }
}

} // namespace commprof
