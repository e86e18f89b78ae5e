// What the bindings of kernels ask of a tensor before they trust its memory.
// All throw std::invalid_argument, naming tensor, value and what is allowed.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

namespace commprof::tensors {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Encoded = std::tuple<Tensor, Tensor>; // values and scales, or indices

inline void check(const Tensor& tensor, const char* name, at::ScalarType type) {
  if (tensor.is_cpu() && tensor.layout() == at::kStrided &&
      tensor.is_contiguous() && tensor.scalar_type() == type) {
    return;
  }
  throw std::invalid_argument(
      std::string(name) + " is " +
      (tensor.is_cpu() ? tensor.is_contiguous() ? "" : "non-contiguous "
                       : "non-CPU ") +
      c10::toString(tensor.scalar_type()) +
      "; allowed: a contiguous CPU tensor of " + c10::toString(type));
}

inline void checkCount(const Tensor& tensor, const char* name, size_t count) {
  if (size_t(tensor.numel()) != count) {
    throw std::invalid_argument(
        std::string(name) + " has " + std::to_string(tensor.numel()) +
        " values where " + std::to_string(count) + " are needed");
  }
}

inline Tensor empty(size_t count, at::ScalarType type) {
  return at::empty({int64_t(count)}, at::dtype(type));
}

inline const float* floats(const Tensor& x, const char* name = "x") {
  check(x, name, at::kFloat);
  return x.const_data_ptr<float>();
}

// Null where there is none.
inline float* residualFor(OptionalTensor& residual, const Tensor& x) {
  if (!residual) {
    return nullptr;
  }
  check(*residual, "residual", at::kFloat);
  checkCount(*residual, "residual", size_t(x.numel()));
  return residual->mutable_data_ptr<float>();
}

inline const float* scalesFor(const Tensor& scales, size_t blocks) {
  check(scales, "scales", at::kFloat);
  checkCount(scales, "scales", blocks);
  return scales.const_data_ptr<float>();
}

template <class T>
T* bits(const Tensor& tensor) {
  return static_cast<T*>(const_cast<void*>(tensor.const_data_ptr()));
}

} // namespace commprof::tensors
