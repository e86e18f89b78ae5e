// Python bindings of the compression kernels, on plain CPU tensors: they check
// what the kernels trust, and hold no other logic. commprof.compressors.kernels
// documents them.
//
// GIL: released throughout.
#include <pybind11/stl.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/block_quant.h"
#include "kernels/cast.h"
#include "kernels/level.h"
#include "kernels/parallel.h"
#include "kernels/sign.h"
#include "kernels/topk.h"
#include "torch/compression_bindings.h"

namespace py = pybind11;

namespace commprof {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Encoded = std::tuple<Tensor, Tensor>; // values and scales

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

// Null where there is none.
float* residualFor(OptionalTensor& residual, const Tensor& x) {
  if (!residual) {
    return nullptr;
  }
  check(*residual, "residual", at::kFloat);
  checkCount(*residual, "residual", size_t(x.numel()));
  return residual->mutable_data_ptr<float>();
}

const float* scalesFor(const Tensor& scales, size_t blocks) {
  check(scales, "scales", at::kFloat);
  checkCount(scales, "scales", blocks);
  return scales.const_data_ptr<float>();
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
             const std::vector<float>& factors) {
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
    Tensor out = empty(n, type);
    reduce(in.data(), factors.data(), int(in.size()), bits<uint16_t>(out), n);
    return out;
  };
}

// One kind of integers with a scale per block.
struct Int8 {
  using Value = int8_t;
  static constexpr at::ScalarType type = at::kChar;
  static constexpr auto encode = kernels::encodeInt8;
  static constexpr auto decode = kernels::decodeInt8;
  static constexpr auto reduce = kernels::reduceInt8;
  static size_t values(size_t n) {
    return n;
  }
  static size_t blocks(size_t n) {
    return kernels::int8Blocks(n);
  }
};
struct Int4 {
  using Value = uint8_t;
  static constexpr at::ScalarType type = at::kByte;
  static constexpr auto encode = kernels::encodeInt4;
  static constexpr auto decode = kernels::decodeInt4;
  static constexpr auto reduce = kernels::reduceInt4;
  static size_t values(size_t n) {
    return kernels::int4Bytes(n);
  }
  static size_t blocks(size_t n) {
    return kernels::int4Blocks(n);
  }
};

size_t countOf(int64_t n) {
  if (n < 0) {
    throw std::invalid_argument(
        "n=" + std::to_string(n) + " is out of range (allowed: 0 or more)");
  }
  return size_t(n);
}

template <class Kind>
const typename Kind::Value* quantised(const Tensor& values, size_t n) {
  check(values, "values", Kind::type);
  checkCount(values, "values", Kind::values(n));
  return bits<const typename Kind::Value>(values);
}

template <class Kind>
Encoded encodeBlocks(const Tensor& x, OptionalTensor residual) {
  const float* data = floats(x);
  float* lost = residualFor(residual, x);
  const auto n = size_t(x.numel());
  Encoded out{
      empty(Kind::values(n), Kind::type), empty(Kind::blocks(n), at::kFloat)};
  Kind::encode(
      data,
      lost,
      bits<typename Kind::Value>(std::get<0>(out)),
      std::get<1>(out).template mutable_data_ptr<float>(),
      n);
  return out;
}

template <class Kind>
Tensor decodeBlocks(
    const Tensor& values,
    const Tensor& scales,
    int64_t n,
    float factor) {
  const size_t count = countOf(n);
  const auto* in = quantised<Kind>(values, count);
  const float* factors = scalesFor(scales, Kind::blocks(count));
  Tensor out = empty(count, at::kFloat);
  Kind::decode(in, factors, out.mutable_data_ptr<float>(), count, factor);
  return out;
}

template <class Kind>
Encoded reduceBlocks(
    const std::vector<Encoded>& encoded,
    int64_t n,
    float factor) {
  const size_t count = countOf(n);
  if (encoded.empty()) {
    throw std::invalid_argument("reduce of 0 encodings; allowed: at least one");
  }
  std::vector<const typename Kind::Value*> in;
  std::vector<const float*> in_scales;
  for (const auto& [values, scales] : encoded) {
    in.push_back(quantised<Kind>(values, count));
    in_scales.push_back(scalesFor(scales, Kind::blocks(count)));
  }
  Encoded out{
      empty(Kind::values(count), Kind::type),
      empty(Kind::blocks(count), at::kFloat)};
  Kind::reduce(
      in.data(),
      in_scales.data(),
      int(in.size()),
      factor,
      bits<typename Kind::Value>(std::get<0>(out)),
      std::get<1>(out).template mutable_data_ptr<float>(),
      count);
  return out;
}

Encoded encodeSign(const Tensor& x, OptionalTensor residual) {
  const float* data = floats(x);
  float* lost = residualFor(residual, x);
  const auto n = size_t(x.numel());
  Encoded out{
      empty(kernels::signWords(n), at::kLong),
      empty(kernels::signBlocks(n), at::kFloat)};
  kernels::encodeSign(
      data,
      lost,
      bits<uint64_t>(std::get<0>(out)),
      std::get<1>(out).mutable_data_ptr<float>(),
      n);
  return out;
}

Tensor decodeSign(
    const Tensor& values,
    const Tensor& scales,
    int64_t n,
    float factor) {
  const size_t count = countOf(n);
  check(values, "values", at::kLong);
  checkCount(values, "values", kernels::signWords(count));
  const float* factors = scalesFor(scales, kernels::signBlocks(count));
  Tensor out = at::zeros({n}, at::dtype(at::kFloat));
  kernels::addSign(
      bits<const uint64_t>(values),
      factors,
      out.mutable_data_ptr<float>(),
      count,
      factor);
  return out;
}

template <class Kind>
void bindBlocks(py::module_& m, const std::string& name) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  m.def(
      ("encode_" + name).c_str(),
      &encodeBlocks<Kind>,
      py::arg("x"),
      py::arg("residual") = py::none(),
      NoGil());
  m.def(
      ("decode_" + name).c_str(),
      &decodeBlocks<Kind>,
      py::arg("values"),
      py::arg("scales"),
      py::arg("n"),
      py::arg("factor") = 1.0f,
      NoGil());
  m.def(
      ("reduce_" + name).c_str(),
      &reduceBlocks<Kind>,
      py::arg("encoded"),
      py::arg("n"),
      py::arg("factor") = 1.0f,
      NoGil());
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
  bindBlocks<Int8>(m, "int8");
  bindBlocks<Int4>(m, "int4");
  m.def(
      "encode_sign",
      &encodeSign,
      py::arg("x"),
      py::arg("residual") = py::none(),
      NoGil());
  m.def(
      "decode_sign",
      &decodeSign,
      py::arg("values"),
      py::arg("scales"),
      py::arg("n"),
      py::arg("factor") = 1.0f,
      NoGil());
}

} // namespace commprof
