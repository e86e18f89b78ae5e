#include "tune/torch/shm/dense.h"

namespace commprof::tune {

std::optional<kernels::Element> elementOf(const at::Tensor& tensor) {
  if (!isPlain(tensor)) {
    return std::nullopt;
  }
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernels::Element::kF32;
    case at::kDouble:
      return kernels::Element::kF64;
    case at::kHalf:
      return kernels::Element::kF16;
    case at::kBFloat16:
      return kernels::Element::kBf16;
    case at::kInt:
      return kernels::Element::kI32;
    case at::kLong:
      return kernels::Element::kI64;
    default:
      return std::nullopt;
  }
}

std::optional<kernels::Reduction> reductionOf(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return kernels::Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return kernels::Reduction::kMean;
    case c10d::ReduceOp::MAX:
      return kernels::Reduction::kMax;
    case c10d::ReduceOp::MIN:
      return kernels::Reduction::kMin;
    default:
      return std::nullopt;
  }
}

} // namespace commprof::tune
