// Size in bytes of a tensor as a collective sends it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace commprof {

// Returns the size of a tensor's elements. For a sparse tensor, whose nbytes()
// throws, returns the size of its indices and values.
inline uint64_t tensorBytes(const at::Tensor& tensor) {
  return tensor.is_sparse()
      ? tensor._indices().nbytes() + tensor._values().nbytes()
      : uint64_t(tensor.numel()) * uint64_t(tensor.element_size());
}

} // namespace commprof
