// Python bindings of some compression kernels, for CPU tensors.
// commprof/tune/compressors/kernels.py documents the kernels. The kernels do
// not check their arguments, so the bindings do. They throw
// std::invalid_argument for a wrong tensor.
//
// The kernels run without the GIL.
#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tune/kernels/blocks/block_quant.h"
#include "tune/kernels/blocks/cast.h"
#include "tune/kernels/level.h"
#include "tune/kernels/parallel.h"
#include "tune/kernels/topk/topk.h"
#include "tune/torch/bindings/bindings.h"

namespace py = pybind11;

namespace commprof::tune {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
// Values and their scales, or values and their indices.
using Encoded = std::tuple<Tensor, Tensor>;

void check(const Tensor& tensor, const char* name, at::ScalarType type) {
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

void checkCount(const Tensor& tensor, const char* name, size_t count) {
  if (size_t(tensor.numel()) != count) {
    throw std::invalid_argument(
        std::string(name) + " has " + std::to_string(tensor.numel()) +
        " values where " + std::to_string(count) + " are needed");
  }
}

Tensor empty(size_t count, at::ScalarType type) {
  return at::empty({int64_t(count)}, at::dtype(type));
}

const float* floats(const Tensor& x, const char* name = "x") {
  check(x, name, at::kFloat);
  return x.const_data_ptr<float>();
}

// Checks a residual and returns its values, or null if there is no residual.
float* residualFor(OptionalTensor& residual, const Tensor& x) {
  if (!residual) {
    return nullptr;
  }
  check(*residual, "residual", at::kFloat);
  checkCount(*residual, "residual", size_t(x.numel()));
  return residual->mutable_data_ptr<float>();
}

template <class T>
T* bits(const Tensor& tensor) {
  return static_cast<T*>(const_cast<void*>(tensor.const_data_ptr()));
}

size_t most(const Tensor& x, int64_t k) {
  if (k < 0) {
    throw std::invalid_argument(
        "k=" + std::to_string(k) + " is out of range (allowed: 0 or more)");
  }
  return size_t(std::min(k, x.numel()));
}

Encoded topK(const Tensor& x, int64_t k) {
  const float* data = floats(x);
  const size_t count = most(x, k);
  Encoded found{empty(count, at::kFloat), empty(count, at::kInt)};
  static thread_local kernels::TopKScratch scratch;
  kernels::topK(
      data,
      size_t(x.numel()),
      count,
      std::get<1>(found).mutable_data_ptr<int32_t>(),
      std::get<0>(found).mutable_data_ptr<float>(),
      scratch);
  return found;
}

Encoded topKFeedback(const Tensor& gradient, Tensor residual, int64_t k) {
  OptionalTensor kept = residual;
  const float* data = floats(gradient, "gradient");
  float* lost = residualFor(kept, gradient);
  const size_t count = most(gradient, k);
  Encoded found{empty(count, at::kFloat), empty(count, at::kInt)};
  static thread_local kernels::TopKScratch scratch;
  kernels::topKFeedback(
      data,
      lost,
      size_t(gradient.numel()),
      count,
      std::get<1>(found).mutable_data_ptr<int32_t>(),
      std::get<0>(found).mutable_data_ptr<float>(),
      scratch);
  return found;
}

Tensor encodeHalf(const Tensor& x, float scale, OptionalTensor residual) {
  const float* data = floats(x);
  float* lost = residualFor(residual, x);
  Tensor out = empty(size_t(x.numel()), at::kHalf);
  kernels::encodeHalf(
      data, lost, bits<uint16_t>(out), size_t(x.numel()), scale);
  return out;
}

Tensor reduceHalf(
    const std::vector<Tensor>& encoded,
    const std::vector<float>& factors,
    OptionalTensor given) {
  if (encoded.empty() || encoded.size() != factors.size()) {
    throw std::invalid_argument(
        "there are " + std::to_string(encoded.size()) + " encodings and " +
        std::to_string(factors.size()) +
        " factors; allowed: at least one encoding, and a factor for each "
        "encoding");
  }
  const auto n = size_t(encoded[0].numel());
  std::vector<const uint16_t*> in;
  for (const Tensor& each : encoded) {
    check(each, "encoded", at::kHalf);
    checkCount(each, "encoded", n);
    in.push_back(bits<const uint16_t>(each));
  }
  if (given) {
    check(*given, "out", at::kHalf);
    checkCount(*given, "out", n);
  }
  Tensor out = given ? *given : empty(n, at::kHalf);
  kernels::reduceHalf(
      in.data(), factors.data(), int(in.size()), bits<uint16_t>(out), n);
  return out;
}

Encoded encodeInt8(const Tensor& x, OptionalTensor residual) {
  const float* data = floats(x);
  float* lost = residualFor(residual, x);
  const auto n = size_t(x.numel());
  Encoded out{empty(n, at::kChar), empty(kernels::int8Blocks(n), at::kFloat)};
  kernels::encodeInt8(
      data,
      lost,
      bits<int8_t>(std::get<0>(out)),
      std::get<1>(out).mutable_data_ptr<float>(),
      n);
  return out;
}

} // namespace

void bindKernels(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  m.def(
      "simd_level",
      [] { return std::string(kernels::levelName(kernels::currentLevel())); },
      "Returns the instruction set that the kernels use.");
  m.def(
      "kernel_threads",
      &kernels::threads,
      "Returns the number of threads that one kernel may use.");
  m.def("topk", &topK, py::arg("x"), py::arg("k"), NoGil());
  m.def(
      "topk_feedback",
      &topKFeedback,
      py::arg("gradient"),
      py::arg("residual"),
      py::arg("k"),
      NoGil());
  m.def(
      "encode_fp16",
      &encodeHalf,
      py::arg("x"),
      py::arg("scale") = 1.0f,
      py::arg("residual") = py::none(),
      NoGil());
  m.def(
      "reduce_fp16",
      &reduceHalf,
      py::arg("encoded"),
      py::arg("factors"),
      py::arg("out") = py::none(),
      NoGil());
  m.def(
      "encode_int8",
      &encodeInt8,
      py::arg("x"),
      py::arg("residual") = py::none(),
      NoGil());
}

} // namespace commprof::tune
