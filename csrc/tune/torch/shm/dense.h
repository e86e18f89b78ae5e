// Tells which tensors the collectives in shared memory support, and gives
// access to a tensor's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstddef>
#include <optional>

#include "tune/kernels/linear/combine.h"

namespace commprof::tune {

// elementOf() and reductionOf() return nullopt for tensors and reductions that
// the kernels do not support.
std::optional<kernels::Element> elementOf(const at::Tensor& tensor);
std::optional<kernels::Reduction> reductionOf(const c10d::ReduceOp& op);

inline bool isPlain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided;
}

inline std::byte* bytesOf(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

// A tensor's values in contiguous memory: the tensor itself if it is
// contiguous, else a copy, which copyBack() writes back.
class InOrder {
 public:
  explicit InOrder(const at::Tensor& tensor)
      : tensor_(tensor), dense_(tensor.contiguous()) {}
  const at::Tensor& dense() const {
    return dense_;
  }
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

} // namespace commprof::tune
