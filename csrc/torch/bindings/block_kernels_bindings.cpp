// Python bindings of the kernels that keep a scale per block: int8 and int4.
// commprof.compressors.kernels documents them.
//
// GIL: released throughout.
#include <pybind11/stl.h>

#include <vector>

#include "kernels/blocks/block_quant.h"
#include "torch/bindings/compression_bindings.h"
#include "torch/compress/kernel_tensors.h"

namespace py = pybind11;

namespace commprof {

namespace {

using namespace tensors;

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

} // namespace

void bindBlockKernels(py::module_& m) {
  bindBlocks<Int8>(m, "int8");
  bindBlocks<Int4>(m, "int4");
}

} // namespace commprof
