// The thread on which a model's buckets are compressed and exchanged.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/threads.h"
#include "compress/compressor.h"
#include "compress/exchange/host_stage.h"
#include "compress/exchange/transport.h"

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

} // namespace commprof
