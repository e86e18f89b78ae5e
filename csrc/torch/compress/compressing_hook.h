// A communication hook that compresses gradient buckets, and the thread on
// which it does so; goes inside BucketHook.
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
#include "compress/compressor.h"
#include "compress/exchange/host_stage.h"
#include "compress/exchange/transport.h"
#include "compress/sockets/mesh.h"
#include "torch/capture/ddp/ddp_hook.h"

namespace commprof {

// One bucket on its way.
struct BucketTask {
  compress::Bucket bucket; // its slots live as long as `keeps_slots`
  std::shared_ptr<const void> keeps_slots;
  at::Tensor buffer; // the bucket's memory, and the future's value
  c10::intrusive_ptr<c10::ivalue::Future> future;
  uint64_t op_id = 0; // of the bucket's record; 0: record nothing
  int graph_task = -1; // the backward pass that it belongs to
};

// Takes buckets in order, runs the compressor on a thread of its own and
// completes their futures there. That thread may block, for nothing else waits
// for it: no gloo thread, and no callback of a future, both of which would
// deadlock with several buckets in flight. It never takes the GIL.
//
// What a bucket throws becomes its future's error, and the first one that of
// all later buckets.
class Executor {
 public:
  struct Exchange {
    // Null: this rank exchanges none.
    std::unique_ptr<compress::Transport> transport;
    std::unique_ptr<compress::HostStage> host; // null: all ranks exchange all
  };
  // `rank`, in the model's group, and `scheme`, with its options, are for
  // errors.
  Executor(
      std::unique_ptr<compress::Compressor> compressor,
      Exchange exchange,
      int rank,
      std::string scheme);
  // Stops, with a second's patience. Hold no GIL: the thread may have to finish
  // a bucket.
  ~Executor();

  // Any thread; order counts and must be the same on all ranks. Throws
  // std::runtime_error once stopped, and in a forked child, where the thread
  // does not exist.
  void submit(BucketTask task);

  // Instead of submit(), for a bucket that cannot be taken: nothing more will
  // come of this rank, and those that wait for it learn of it. Any thread.
  void refuse(uint64_t step, uint32_t index, const std::string& why) noexcept;

  // Takes no more buckets and waits for those that it has, but no longer than
  // `patience`. A thread that is still busy then, with a rank that does not
  // answer, is interrupted where it waits for messages; if it is busy for as
  // long again, it is left alone with all that it uses. Idempotent.
  void stop(std::chrono::milliseconds patience);

  // Runs `use` while no bucket is being compressed; call it between steps.
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

// Buckets of fp32 gradients in the CPU's memory go to the executor; others take
// DDP's own way, and the first of them is told of in a warning.
//
// A bucket's parameters are told by their TensorImpl and known by their number
// in the model, since DDP uses indices and memory of buckets again when it
// regroups them.
class CompressingHook final : public c10d::CommHookInterface {
 public:
  struct Groups {
    c10::intrusive_ptr<c10d::ProcessGroup> model; // DDP's
    // The ranks that exchange with this one, nobody else's; null: none do.
    c10::intrusive_ptr<c10d::ProcessGroup> own;
    std::shared_ptr<net::Mesh> mesh; // of `own`; null: its messages do
    std::unique_ptr<compress::HostStage> host; // null: `own` has all ranks
  };

  // `parameters`: of the model, in the same order on all ranks. `label`: the
  // scheme and its options, the same on all ranks. Throws as
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
  // Synchronised backward passes so far.
  uint64_t step() const noexcept {
    return step_.load();
  }
  void setStep(uint64_t step) noexcept {
    step_.store(step);
  }

 private:
  // What a bucket consists of; told by the addresses of its parameters.
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

} // namespace commprof
