// A c10d backend of one rank, which stands for a backend outside torch: Python
// sees its Works as a class of their own, ForeignWork.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <thread>

namespace py = pybind11;

namespace {

constexpr auto kTakes = std::chrono::milliseconds(100);

// What getFuture() does: "complete", "null" or "refused".
std::string& futures() {
  static std::string how = "complete";
  return how;
}

class ForeignWork final : public c10d::Work {
 public:
  explicit ForeignWork(std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)), how_(futures()) {}

  bool wait(std::chrono::milliseconds) override {
    std::this_thread::sleep_for(kTakes);
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (how_ == "null") {
      return nullptr;
    }
    if (how_ == "refused") {
      throw std::runtime_error("this backend has no futures");
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }

  int tag = 0;

 private:
  const std::vector<at::Tensor> tensors_;
  const std::string how_;
};

class ForeignBackend final : public c10d::Backend {
 public:
  using Backend::Backend;

  const std::string getBackendName() const override {
    return "foreign";
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<ForeignWork>(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<ForeignWork>(tensors);
  }
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions&) override {
    outputs.at(0).at(0).copy_(inputs.at(0));
    return c10::make_intrusive<ForeignWork>(inputs);
  }
};

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<ForeignWork, c10::intrusive_ptr<ForeignWork>, c10d::Work>(
      m, "ForeignWork", py::dynamic_attr())
      .def_readwrite("tag", &ForeignWork::tag)
      .def("twice", [](const ForeignWork& self, int x) {
        return 2 * x + self.tag;
      });
  m.def(
      "backend",
      [](const c10::intrusive_ptr<c10d::Store>&,
         int rank,
         int size,
         const py::object&) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<ForeignBackend>(rank, size);
      });
  m.def("futures", [](const std::string& how) { futures() = how; });
}
