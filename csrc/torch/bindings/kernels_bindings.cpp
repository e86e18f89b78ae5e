// Python bindings of the compression kernels, on plain CPU tensors: they check
// what the kernels trust, and hold no other logic. commprof.compressors.kernels
// documents them. One file, as torch's headers take the compiler longer than
// all that stands here.
//
// GIL: released throughout.
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/blocks/block_quant.h"
#include "kernels/blocks/cast.h"
#include "kernels/level.h"
#include "kernels/linear/low_rank.h"
#include "kernels/parallel.h"
#include "kernels/topk/topk.h"
#include "torch/bindings/bindings.h"
#include "torch/bindings/kernel_tensors.h"

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

// int8 and int4, which keep a scale per block.

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

// PowerSGD's passes, whose factors can be summed.

std::invalid_argument outOfRange(
    const char* name,
    int64_t value,
    const std::string& allowed) {
  return std::invalid_argument(
      std::string(name) + "=" + std::to_string(value) +
      " is out of range (allowed: " + allowed + ")");
}

float* matrix(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  check(x, name, at::kFloat);
  if (x.dim() != 2 || x.size(0) != rows || x.size(1) != cols) {
    std::string shape;
    for (const int64_t size : x.sizes()) {
      shape += (shape.empty() ? "" : " x ") + std::to_string(size);
    }
    throw std::invalid_argument(
        std::string(name) + " is " + shape + " where " + std::to_string(rows) +
        " x " + std::to_string(cols) + " is needed");
  }
  return bits<float>(x);
}

// Of rows x cols and what is said to have `rank` rows or columns.
int rankOf(const Tensor& factor, const char* name, int dimension) {
  check(factor, name, at::kFloat);
  const int64_t rank = factor.dim() == 2 ? factor.size(dimension) : 0;
  if (rank < 1 || rank > kernels::kMaxRank) {
    throw outOfRange(
        (std::string("rank of ") + name).c_str(),
        rank,
        "a matrix of 1 to " + std::to_string(kernels::kMaxRank));
  }
  return int(rank);
}

int64_t sizeOf(const Tensor& x, const char* name, int dimension) {
  check(x, name, at::kFloat);
  if (x.dim() != 2) {
    throw std::invalid_argument(
        std::string(name) + " has " + std::to_string(x.dim()) +
        " dimensions where 2 are needed");
  }
  return x.size(dimension);
}

Tensor projectRows(
    const Tensor& gradient,
    const Tensor& residual,
    const Tensor& q) {
  const int rank = rankOf(q, "q", 0);
  const int64_t rows = sizeOf(gradient, "gradient", 0);
  const int64_t cols = sizeOf(gradient, "gradient", 1);
  float* const rest = matrix(residual, "residual", rows, cols);
  const float* const right = matrix(q, "q", rank, cols);
  Tensor p = at::empty({rows, rank}, at::dtype(at::kFloat));
  kernels::projectRows(
      gradient.const_data_ptr<float>(),
      rest,
      size_t(rows),
      size_t(cols),
      rank,
      right,
      p.mutable_data_ptr<float>());
  return p;
}

void orthogonalise(const Tensor& p) {
  const int rank = rankOf(p, "p", 1);
  kernels::orthogonalise(bits<float>(p), size_t(p.size(0)), rank);
}

Tensor projectCols(const Tensor& residual, const Tensor& p) {
  const int rank = rankOf(p, "p", 1);
  const int64_t rows = sizeOf(residual, "residual", 0);
  const int64_t cols = sizeOf(residual, "residual", 1);
  const float* const left = matrix(p, "p", rows, rank);
  Tensor q = at::empty({rank, cols}, at::dtype(at::kFloat));
  kernels::projectCols(
      residual.const_data_ptr<float>(),
      size_t(rows),
      size_t(cols),
      rank,
      left,
      q.mutable_data_ptr<float>());
  return q;
}

Tensor reconstruct(
    const Tensor& p,
    const Tensor& q,
    const Tensor& residual,
    const Tensor& q_local) {
  const int rank = rankOf(p, "p", 1);
  const int64_t rows = p.size(0), cols = sizeOf(q, "q", 1);
  const float* const right = matrix(q, "q", rank, cols);
  const float* const own = matrix(q_local, "q_local", rank, cols);
  float* const rest = matrix(residual, "residual", rows, cols);
  Tensor out = at::empty({rows, cols}, at::dtype(at::kFloat));
  kernels::reconstruct(
      out.mutable_data_ptr<float>(),
      rest,
      size_t(rows),
      size_t(cols),
      rank,
      p.const_data_ptr<float>(),
      right,
      own);
  return out;
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
      "project_rows",
      &projectRows,
      py::arg("gradient"),
      py::arg("residual"),
      py::arg("q"),
      NoGil());
  m.def("orthogonalise", &orthogonalise, py::arg("p"), NoGil());
  m.def(
      "project_cols", &projectCols, py::arg("residual"), py::arg("p"), NoGil());
  m.def(
      "reconstruct",
      &reconstruct,
      py::arg("p"),
      py::arg("q"),
      py::arg("residual"),
      py::arg("q_local"),
      NoGil());
}

} // namespace commprof
