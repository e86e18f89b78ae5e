#include "tune/torch/shm/shm_backend.h"

#include <utility>

#include "tune/shm/collectives.h"
#include "tune/torch/shm/dense.h"
#include "tune/torch/shm/threaded_backend.h"

namespace commprof::tune {

namespace {

using c10d::OpType;

class ShmBackend final : public ThreadedBackend {
 public:
  ShmBackend(
      c10::intrusive_ptr<c10d::Backend> wrapped,
      std::shared_ptr<shm::Team> team)
      : ThreadedBackend(std::move(wrapped), std::move(team)) {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    const auto reduction = reductionOf(options.reduceOp);
    const auto element = tensors.size() == 1 ? elementOf(tensors[0])
                                             : std::optional<shm::Element>();
    if (!reduction || !element) {
      return WrappingBackend::allreduce(tensors, options);
    }
    return start(
        OpType::ALLREDUCE,
        tensors,
        options.asyncOp,
        [tensor = tensors[0], element, reduction](shm::Team& team) {
          InOrder data(tensor);
          shm::allReduce(
              team, data.data(), size_t(tensor.numel()), *element, *reduction);
          data.copyBack();
        });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options)
      override {
    if (tensors.size() != 1 || !isPlain(tensors[0])) {
      return WrappingBackend::broadcast(tensors, options);
    }
    return start(
        OpType::BROADCAST,
        tensors,
        options.asyncOp,
        [tensor = tensors[0], root = int(options.rootRank)](shm::Team& team) {
          InOrder data(tensor);
          shm::broadcast(team, data.data(), tensor.nbytes(), root);
          data.copyBack();
        });
  }

  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    if (!isPlain(input) || !isPlain(output) || !output.is_contiguous() ||
        output.nbytes() != input.nbytes() * size_t(size_) ||
        output.scalar_type() != input.scalar_type()) {
      return WrappingBackend::_allgather_base(output, input, options);
    }
    return start(
        OpType::_ALLGATHER_BASE,
        {output},
        options.asyncOp,
        [output, input](shm::Team& team) {
          const InOrder data(input);
          shm::allGather(team, data.data(), bytesOf(output), input.nbytes());
        });
  }

  WorkPtr allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    if (outputs.size() != 1 || inputs.size() != 1 ||
        !fitTogether(outputs[0], inputs[0])) {
      return WrappingBackend::allgather(outputs, inputs, options);
    }
    return start(
        OpType::ALLGATHER,
        outputs[0],
        options.asyncOp,
        [parts = outputs[0], input = inputs[0]](shm::Team& team) {
          const InOrder data(input);
          std::vector<std::byte*> out;
          for (const at::Tensor& part : parts) {
            out.push_back(bytesOf(part));
          }
          shm::allGather(team, data.data(), out, input.nbytes());
        });
  }

  WorkPtr _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    const auto reduction = reductionOf(options.reduceOp);
    const auto element = elementOf(input);
    if (!reduction || !element || !isPlain(output) || !output.is_contiguous() ||
        output.scalar_type() != input.scalar_type() ||
        input.numel() != output.numel() * size_) {
      return WrappingBackend::_reduce_scatter_base(output, input, options);
    }
    return start(
        OpType::_REDUCE_SCATTER_BASE,
        {output},
        options.asyncOp,
        [output, input, element, reduction](shm::Team& team) {
          const InOrder data(input);
          shm::reduceScatter(
              team,
              data.data(),
              bytesOf(output),
              size_t(output.numel()),
              *element,
              *reduction);
        });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return startBarrier(
        options.asyncOp, [team = team_] { shm::barrier(*team); });
  }

 private:
  bool fitTogether(const Tensors& parts, const at::Tensor& input) const {
    bool fit = isPlain(input) && parts.size() == size_t(size_);
    for (const at::Tensor& part : parts) {
      fit = fit && isPlain(part) && part.is_contiguous() &&
          part.nbytes() == input.nbytes() &&
          part.scalar_type() == input.scalar_type();
    }
    return fit;
  }

  WorkPtr start(
      OpType type,
      Tensors outputs,
      bool async,
      std::function<void(shm::Team&)> collective) {
    return ThreadedBackend::start(
        type,
        std::move(outputs),
        async,
        [team = team_, run = std::move(collective)] { run(*team); });
  }
};

} // namespace

c10::intrusive_ptr<c10d::Backend> makeShmBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    std::shared_ptr<shm::Team> team) {
  return c10::make_intrusive<ShmBackend>(std::move(wrapped), std::move(team));
}

} // namespace commprof::tune
