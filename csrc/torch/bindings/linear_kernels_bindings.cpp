// Python bindings of PowerSGD's passes, whose factors can be summed.
// commprof.compressors.kernels documents them.
//
// GIL: released throughout.
#include <pybind11/stl.h>

#include <string>

#include "kernels/linear/low_rank.h"
#include "torch/bindings/compression_bindings.h"
#include "torch/compress/kernel_tensors.h"

namespace py = pybind11;

namespace commprof {

namespace {

using namespace tensors;

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

void bindLinearKernels(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
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
