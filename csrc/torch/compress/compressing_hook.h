// A communication hook that compresses gradient buckets; goes inside
// BucketHook.
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "compress/compressor.h"
#include "compress/sockets/mesh.h"
#include "torch/capture/ddp/mean_all_reduce.h"
#include "torch/compress/executor.h"

namespace commprof {

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
