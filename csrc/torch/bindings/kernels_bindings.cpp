// Python bindings of the compression kernels, on plain CPU tensors: they check
// what the kernels trust, and hold no other logic. commprof.compressors.kernels
// documents them.
//
// GIL: released throughout.
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/blocks/cast.h"
#include "kernels/level.h"
#include "kernels/parallel.h"
#include "kernels/topk/topk.h"
#include "torch/bindings/compression_bindings.h"
#include "torch/compress/kernel_tensors.h"

namespace py = pybind11;

namespace commprof {

namespace {

using namespace tensors;

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

Tensor encodeBfloat16(const Tensor& x, OptionalTensor residual) {
  const float* data = floats(x);
  float* lost = residualFor(residual, x);
  Tensor out = empty(size_t(x.numel()), at::kBFloat16);
  kernels::encodeBfloat16(data, lost, bits<uint16_t>(out), size_t(x.numel()));
  return out;
}

template <auto decode>
auto decode16(at::ScalarType type) {
  return [type](const Tensor& encoded, float factor) {
    check(encoded, "encoded", type);
    Tensor out = empty(size_t(encoded.numel()), at::kFloat);
    decode(
        bits<const uint16_t>(encoded),
        out.mutable_data_ptr<float>(),
        size_t(encoded.numel()),
        factor);
    return out;
  };
}

template <auto reduce>
auto reduce16(at::ScalarType type) {
  return [type](
             const std::vector<Tensor>& encoded,
             const std::vector<float>& factors,
             OptionalTensor given) {
    if (encoded.empty() || encoded.size() != factors.size()) {
      throw std::invalid_argument(
          "reduce of " + std::to_string(encoded.size()) + " encodings with " +
          std::to_string(factors.size()) +
          " factors; allowed: one factor for each, and at least one");
    }
    const auto n = size_t(encoded[0].numel());
    std::vector<const uint16_t*> in;
    for (const Tensor& each : encoded) {
      check(each, "encoded", type);
      checkCount(each, "encoded", n);
      in.push_back(bits<const uint16_t>(each));
    }
    if (given) {
      check(*given, "out", type);
      checkCount(*given, "out", n);
    }
    Tensor out = given ? *given : empty(n, type);
    reduce(in.data(), factors.data(), int(in.size()), bits<uint16_t>(out), n);
    return out;
  };
}

template <auto decode, auto reduce>
void bind16(py::module_& m, const std::string& name, at::ScalarType type) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  m.def(
      ("decode_" + name).c_str(),
      decode16<decode>(type),
      py::arg("encoded"),
      py::arg("factor") = 1.0f,
      NoGil());
  m.def(
      ("reduce_" + name).c_str(),
      reduce16<reduce>(type),
      py::arg("encoded"),
      py::arg("factors"),
      py::arg("out") = py::none(),
      NoGil());
}

} // namespace

void bindKernels(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  m.def(
      "simd_level",
      [] { return std::string(kernels::levelName(kernels::currentLevel())); },
      "Instructions that the kernels use.");
  m.def(
      "kernel_threads", &kernels::threads, "Threads that one kernel may use.");
  m.def(
      "set_kernel_threads",
      &kernels::setThreads,
      "Lets one kernel use so many threads.",
      py::arg("count"));
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
      "encode_bf16",
      &encodeBfloat16,
      py::arg("x"),
      py::arg("residual") = py::none(),
      NoGil());
  bind16<kernels::decodeHalf, kernels::reduceHalf>(m, "fp16", at::kHalf);
  bind16<kernels::decodeBfloat16, kernels::reduceBfloat16>(
      m, "bf16", at::kBFloat16);
  bindBlockKernels(m);
  bindLinearKernels(m);
}

} // namespace commprof
