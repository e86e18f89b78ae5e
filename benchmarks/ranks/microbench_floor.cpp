// Minimal loop over a c10d process group. microbench_floor.py builds it, and
// compares commprof microbench with it.
#include <torch/extension.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <utility>
#include <vector>

namespace {

int64_t nowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using Times = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

// Returns the begins and the ends of the all-reduces, in ns. A barrier precedes
// each all-reduce.
Times allReduces(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const at::Tensor& tensor,
    int64_t iterations) {
  const pybind11::gil_scoped_release release;
  std::vector<at::Tensor> tensors{tensor};
  // The calls are synchronous, as in microbench.
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  c10d::BarrierOptions meeting;
  meeting.asyncOp = false;
  Times times;
  times.first.reserve(size_t(iterations));
  times.second.reserve(size_t(iterations));
  for (int64_t i = 0; i < iterations; ++i) {
    group->barrier(meeting)->wait();
    times.first.push_back(nowNs());
    group->allreduce(tensors, options)->wait();
    times.second.push_back(nowNs());
  }
  return times;
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("all_reduces", &allReduces);
}
