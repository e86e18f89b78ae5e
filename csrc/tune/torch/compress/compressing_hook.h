// A communication hook that compresses gradient buckets on a thread of its own;
// runs inside BucketHook.
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

// One bucket to be exchanged.
struct BucketTask {
  compress::Bucket bucket; // its slots exist as long as `keeps_slots`
  std::shared_ptr<const void> keeps_slots;
  at::Tensor buffer; // the bucket's memory, and the future's value
  c10::intrusive_ptr<c10::ivalue::Future> future;
  uint64_t op_id = 0; // id of the bucket's record; 0: record nothing
  int graph_task = -1; // the backward pass of the bucket
};

// Runs the compressor on buckets in order, on a thread of its own, and
// completes their futures there. That thread may block, because nothing else
// runs on it. On a gloo thread or in a future's callback, blocking would
// deadlock with several buckets in flight. The thread never acquires the GIL.
//
// An exception of a bucket becomes the error of the bucket's future. The first
// exception also becomes the error of all later buckets.
class Executor {
 public:
  struct Exchange {
    // Connects this rank with its peers; null if only other ranks of this host
    // have peers.
    std::unique_ptr<compress::Transport> transport;
    // Adds up the host's gradients first; null if every rank exchanges its own.
    std::unique_ptr<compress::HostStage> host;
  };
  // For error messages: `rank` is this rank in the model's group, and `scheme`
  // is the scheme with its options.
  Executor(
      std::unique_ptr<compress::Compressor> compressor,
      Exchange exchange,
      int rank,
      std::string scheme);
  // Calls stop() with a patience of a second. Release the GIL first, because
  // this may wait until the thread has finished the queued buckets.
  ~Executor();

  // Queues a bucket. Callable from any thread; the order must be the same on
  // all ranks. Throws std::runtime_error after stop(), and in a forked child,
  // where the thread does not exist.
  void submit(BucketTask task);

  // Called instead of submit() if a bucket cannot be compressed: this rank
  // sends nothing more, and the ranks that wait for it are notified. Callable
  // from any thread.
  void refuse(uint64_t step, uint32_t index, const std::string& why) noexcept;

  // Accepts no more buckets and waits for the queued ones, but no longer than
  // `patience`. If the thread is still busy then, because a rank does not
  // answer, its wait for messages is interrupted; if it is busy for as long
  // again, it is abandoned with everything that it uses. Idempotent.
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

// Passes buckets of fp32 gradients in CPU memory to the executor; other buckets
// are all-reduced as in DDP, with a warning for the first of them.
//
// Parameters are recognised by their TensorImpl and identified by their index
// in the model, because DDP reuses indices and memory of buckets when it
// regroups them.
class CompressingHook final : public InnerHook {
 public:
  struct Groups {
    c10::intrusive_ptr<c10d::ProcessGroup> model; // DDP's group
    // Group of the ranks that exchange data with this rank; no other code uses
    // it. Null if there is none.
    c10::intrusive_ptr<c10d::ProcessGroup> own;
    std::shared_ptr<net::Mesh>
        mesh; // connections of `own`; null: messages use c10d
    std::unique_ptr<compress::HostStage> host; // null if `own` has all ranks
  };

  // `parameters`: the model's, in the same order on all ranks. `label`: scheme
  // and options, the same on all ranks. Throws the errors of
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
  // Parameters of a bucket. compositions_ is keyed by the addresses of these
  // parameters.
  struct Composition {
    std::vector<compress::Slot> slots;
    uint64_t signature = 0;
    size_t numel = 0;
  };
  using Key = std::vector<const void*>;

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
