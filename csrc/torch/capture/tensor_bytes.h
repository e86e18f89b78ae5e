// How large a tensor is on its way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace commprof {

// Of its elements; of a sparse one, whose nbytes() throws, of its indices and
// values.
inline uint64_t tensorBytes(const at::Tensor& tensor) {
  return tensor.is_sparse()
      ? tensor._indices().nbytes() + tensor._values().nbytes()
      : uint64_t(tensor.numel()) * uint64_t(tensor.element_size());
}

} // namespace commprof
