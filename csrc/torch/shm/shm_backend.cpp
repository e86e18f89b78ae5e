#include "torch/shm/shm_backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <optional>
#include <utility>

#include "core/task_thread.h"
#include "shm/collectives.h"
#include "torch/shm/wrapping_backend.h"

namespace commprof {

namespace {

using c10d::OpType;
using c10d::Work;

class ShmWork final : public Work {
 public:
  ShmWork(int rank, OpType type, Tensors outputs)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        future_(
            c10::make_intrusive<c10::ivalue::Future>(
                c10::ListType::create(c10::TensorType::get()))) {}

  void run(const std::function<void()>& collective) {
    try {
      collective();
      future_->markCompleted(c10::IValue(outputs_));
      finish();
    } catch (...) {
      future_->setErrorIfNeeded(std::current_exception());
      finish(std::current_exception());
    }
  }

  std::vector<at::Tensor> result() override {
    return outputs_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  const Tensors outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

std::optional<shm::Element> elementOf(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    return std::nullopt;
  }
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return shm::Element::kF32;
    case at::kDouble:
      return shm::Element::kF64;
    case at::kHalf:
      return shm::Element::kF16;
    case at::kBFloat16:
      return shm::Element::kBf16;
    case at::kInt:
      return shm::Element::kI32;
    case at::kLong:
      return shm::Element::kI64;
    default:
      return std::nullopt;
  }
}

std::optional<shm::Reduction> reductionOf(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return shm::Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return shm::Reduction::kMean;
    case c10d::ReduceOp::MAX:
      return shm::Reduction::kMax;
    case c10d::ReduceOp::MIN:
      return shm::Reduction::kMin;
    default:
      return std::nullopt;
  }
}

bool isPlain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided;
}

std::byte* bytesOf(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

// The tensor itself where its elements lie in order, or a copy that goes back.
class InOrder {
 public:
  explicit InOrder(const at::Tensor& tensor)
      : tensor_(tensor), dense_(tensor.contiguous()) {}
  std::byte* data() const {
    return bytesOf(dense_);
  }
  void copyBack() {
    if (!dense_.is_same(tensor_)) {
      tensor_.copy_(dense_);
    }
  }

 private:
  at::Tensor tensor_;
  const at::Tensor dense_;
};

class ShmBackend final : public WrappingBackend {
 public:
  ShmBackend(
      c10::intrusive_ptr<c10d::Backend> wrapped,
      std::shared_ptr<shm::Team> team)
      : WrappingBackend(std::move(wrapped)), team_(std::move(team)) {}

  const std::string getBackendName() const override {
    return "commprof";
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    const auto reduction = reductionOf(options.reduceOp);
    const auto element = tensors.size() == 1 ? elementOf(tensors[0])
                                             : std::optional<shm::Element>();
    if (!reduction || !element) {
      return wrapped_->allreduce(tensors, options);
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
      return wrapped_->broadcast(tensors, options);
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
      return wrapped_->_allgather_base(output, input, options);
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
      return wrapped_->allgather(outputs, inputs, options);
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
      return wrapped_->_reduce_scatter_base(output, input, options);
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
    return start(OpType::BARRIER, {}, options.asyncOp, [](shm::Team& team) {
      shm::barrier(team);
    });
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

  // In the caller's thread where it would wait for it anyway and nothing is
  // before it: a hand-over costs more than a small collective.
  WorkPtr start(
      OpType type,
      Tensors outputs,
      bool async,
      std::function<void(shm::Team&)> collective) {
    auto work = c10::make_intrusive<ShmWork>(rank_, type, std::move(outputs));
    const auto task = [work, team = team_, run = std::move(collective)] {
      work->run([&] { run(*team); });
    };
    if ((async || !thread_.runHere(task)) && !thread_.post(task)) {
      throw std::runtime_error(
          "commprof: a forked child cannot use its parent's process group; "
          "call init_process_group in the child");
    }
    return work;
  }

  const std::shared_ptr<shm::Team> team_;
  TaskThread thread_{"commprof-shm"};
};

} // namespace

c10::intrusive_ptr<c10d::Backend> makeShmBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    std::shared_ptr<shm::Team> team) {
  return c10::make_intrusive<ShmBackend>(std::move(wrapped), std::move(team));
}

} // namespace commprof
