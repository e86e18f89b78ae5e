// A communication hook that compresses gradient buckets on a thread of its own.
// BucketHook calls it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/threads.h"
#include "torch/capture/ddp/mean_all_reduce.h"
#include "torch/core_functions.h"
#include "tune/compress/compressor.h"
#include "tune/compress/exchange/host_stage.h"
#include "tune/compress/exchange/transport.h"
#include "tune/compress/sockets/mesh.h"

namespace commprof::tune {

struct BucketTask {
  compress::Bucket bucket; // `keeps_slots` owns the bucket's slots
  std::shared_ptr<const void> keeps_slots;
  at::Tensor buffer; // the bucket's memory, and the future's value
  c10::intrusive_ptr<c10::ivalue::Future> future;
  uint64_t op_id = 0; // id of the bucket's record; 0: record nothing
  int graph_task = -1; // the bucket's backward pass; -1: none
};

// Compresses buckets in order, on a thread of its own, and completes their
// futures. The thread may block, because nothing else runs on it. A gloo thread
// or a future's callback must not block: that could deadlock. The thread never
// acquires the GIL.
//
// If a bucket fails, its future gets the error. All later buckets get the same
// error.
class Executor {
 public:
  struct Exchange {
    // Connects this rank with its peers; null if this rank has no peers.
    std::unique_ptr<compress::Transport> transport;
    // Adds up the gradients of this host's ranks first; null if every rank
    // exchanges its own gradients.
    std::unique_ptr<compress::HostStage> host;
  };
  // For error messages: `rank` is this rank in the model's group, and `scheme`
  // is the scheme with its options.
  Executor(
      std::unique_ptr<compress::Compressor> compressor,
      Exchange exchange,
      int rank,
      std::string scheme);
  // Calls stop() with a patience of one second. Release the GIL first, because
  // this may wait for the thread.
  ~Executor();

  // Queues a bucket. Callable from any thread. The order of the buckets must be
  // the same on all ranks. Throws std::runtime_error after stop() and in a
  // forked child.
  void submit(BucketTask task);

  // Called instead of submit() if a bucket cannot be compressed. This rank then
  // sends nothing more, and the ranks that wait for it are notified. Callable
  // from any thread.
  void refuse(uint64_t step, uint32_t index, const std::string& why) noexcept;

  // Accepts no more buckets, and waits up to `patience` for the queued buckets.
  // After that, interrupts the thread's wait for messages, and waits up to
  // `patience` again. A thread that is busy even then is abandoned, with
  // everything that it uses. Idempotent.
  void stop(std::chrono::milliseconds patience);

  // Runs `use` while no bucket is being compressed; called between steps.
  void withCompressor(const std::function<void(compress::Compressor&)>& use);

 private:
  struct State; // shared with the thread, which may outlive this object
  static void run(State& state, BucketTask& task);
  static void giveUp(
      State& state,
      uint64_t step,
      uint32_t index,
      const std::string& why);

  const std::shared_ptr<State> state_;
  TaskThread thread_;
};

// Passes buckets of fp32 gradients in CPU memory to the executor. All other
// buckets are all-reduced as in DDP, and the first one causes a warning.
//
// Parameters are identified by their index in the model, not by their bucket,
// because DDP regroups its buckets.
class CompressingHook final : public InnerHook {
 public:
  struct Groups {
    c10::intrusive_ptr<c10d::ProcessGroup> model; // DDP's group
    // Group of this rank and its peers, which no other code uses; null if this
    // rank has no peers.
    c10::intrusive_ptr<c10d::ProcessGroup> own;
    // Connections between the ranks of `own`. If null, messages use c10d.
    std::shared_ptr<net::Mesh> mesh;
    std::unique_ptr<compress::HostStage> host; // null if `own` has all ranks
  };

  // `parameters`: the model's parameters, in the same order on all ranks.
  // `label`: scheme and options, the same on all ranks. Throws the errors of
  // Compressor::make().
  CompressingHook(
      Groups groups,
      const std::vector<at::Tensor>& parameters,
      const compress::Options& options,
      std::string label);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(
      c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

  Executor& executor() {
    return executor_;
  }
  // Number of synchronised backward passes so far.
  uint64_t step() const noexcept {
    return step_.load();
  }
  void setStep(uint64_t step) noexcept {
    step_.store(step);
  }

 private:
  struct Composition {
    std::vector<compress::Slot> slots;
    uint64_t signature = 0;
    size_t numel = 0;
  };
  using Key = std::vector<const void*>; // addresses of a bucket's parameters

  const std::shared_ptr<const Composition>& compositionOf(
      const std::vector<at::Tensor>& parameters);
  bool suits(c10d::GradBucket& bucket);
  c10::intrusive_ptr<c10::ivalue::Future> submit(
      c10d::GradBucket& bucket,
      uint64_t step,
      uint32_t index);

  const std::string label_;
  MeanAllReduce mean_all_reduce_;
  Executor executor_;
  std::unordered_map<const void*, uint32_t> number_of_;
  std::map<Key, std::shared_ptr<const Composition>> compositions_;
  std::atomic<uint64_t> step_{0};
  bool warned_ = false;
};

} // namespace commprof::tune
