// Size of a tensor when it is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace commprof {

// Returns the bytes of a tensor's elements; of a sparse tensor, whose nbytes()
// throws, those of its indices and values.
inline uint64_t tensorBytes(const at::Tensor& tensor) {
  return tensor.is_sparse()
      ? tensor._indices().nbytes() + tensor._values().nbytes()
      : uint64_t(tensor.numel()) * uint64_t(tensor.element_size());
}

} // namespace commprof
