// Python bindings of the compressing hook and of its connections between ranks:
// no logic here.
//
// The GIL is released in calls that wait for the hook's thread or for other
// ranks.
#include "tune/torch/bindings/bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <optional>

#include "tune/compress/sockets/listener.h"
#include "tune/torch/compress/compressing_hook.h"

namespace py = pybind11;

namespace commprof::tune {

namespace {

using compress::ParameterState;

// The last reference to the hook may be dropped by Python or by DDP's reducer,
// with or without the GIL, and even after the interpreter has ended.
std::shared_ptr<CompressingHook> makeHook(
    CompressingHook::Groups groups,
    const std::vector<at::Tensor>& parameters,
    const compress::Options& options,
    std::string label) {
  auto* hook = new CompressingHook(
      std::move(groups), parameters, options, std::move(label));
  return {hook, [](CompressingHook* last) {
            if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
              const py::gil_scoped_release release;
              delete last;
            } else {
              delete last;
            }
          }};
}

// (index of the parameter, kind, values).
using StateItem = std::tuple<uint32_t, std::string, at::Tensor>;

std::vector<StateItem> stateOf(CompressingHook& hook) {
  std::vector<StateItem> items;
  hook.executor().withCompressor([&items](compress::Compressor& compressor) {
    for (const ParameterState& state : compressor.state()) {
      items.emplace_back(
          state.parameter,
          state.kind,
          at::tensor(at::ArrayRef<float>(state.values), at::dtype(at::kFloat)));
    }
  });
  return items;
}

void loadState(CompressingHook& hook, const std::vector<StateItem>& items) {
  std::vector<ParameterState> states;
  for (const auto& [parameter, kind, values] : items) {
    const at::Tensor flat =
        values.to(at::kCPU, at::kFloat).contiguous().flatten();
    const float* begin = flat.const_data_ptr<float>();
    states.push_back({parameter, kind, {begin, begin + flat.numel()}});
  }
  hook.executor().withCompressor(
      [&states](compress::Compressor& compressor) { compressor.load(states); });
}

template <class Use>
auto onCompressor(Use use) {
  return [use](CompressingHook& hook, float value) {
    hook.executor().withCompressor(
        [&](compress::Compressor& compressor) { use(compressor, value); });
  };
}

compress::Options optionsOf(
    std::string scheme,
    std::map<std::string, double> values,
    uint64_t seed,
    uint32_t measure_every) {
  compress::Options options;
  options.scheme = std::move(scheme);
  options.values = std::move(values);
  options.seed = seed;
  options.measure_every = measure_every;
  return options;
}

} // namespace

void bindCompression(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<CompressingHook, InnerHook, std::shared_ptr<CompressingHook>>(
      m, "CompressingHook", "Compresses one model's gradient buckets.")
      .def(
          py::init([](c10::intrusive_ptr<c10d::ProcessGroup> model_group,
                      c10::intrusive_ptr<c10d::ProcessGroup> own_group,
                      const std::vector<at::Tensor>& parameters,
                      std::string scheme,
                      std::map<std::string, double> options,
                      uint64_t seed,
                      uint32_t measure_every,
                      std::string label,
                      const std::optional<std::shared_ptr<net::Mesh>>& mesh,
                      const std::optional<std::shared_ptr<shm::Team>>& team,
                      int owners,
                      int hosts) {
            auto host = !team
                ? nullptr
                : std::make_unique<compress::HostStage>(
                      *team, owners, hosts, model_group->getSize());
            return releasedWithoutGil(makeHook(
                {std::move(model_group),
                 std::move(own_group),
                 mesh.value_or(nullptr),
                 std::move(host)},
                parameters,
                optionsOf(
                    std::move(scheme), std::move(options), seed, measure_every),
                std::move(label)));
          }),
          py::arg("model_group"),
          py::arg("own_group").none(true),
          py::arg("parameters"),
          py::arg("scheme"),
          py::arg("options"),
          py::arg("seed"),
          py::arg("measure_every"),
          py::arg("label"),
          py::arg("mesh") = py::none(),
          py::arg("team") = py::none(),
          py::arg("owners") = 0,
          py::arg("hosts") = 0)
      .def_property("step", &CompressingHook::step, &CompressingHook::setStep)
      .def(
          "state",
          &stateOf,
          "Returns all state, a list of (parameter index, kind, values).",
          NoGil())
      .def(
          "load_state",
          &loadState,
          "Replaces all state; call it between steps.",
          py::arg("state"),
          NoGil())
      .def(
          "scale_residuals",
          onCompressor([](compress::Compressor& compressor, float factor) {
            compressor.scaleResiduals(factor);
          }),
          "Multiplies the residuals by `factor`, by which the loss scale "
          "changed.",
          py::arg("factor"),
          NoGil())
      .def(
          "step_skipped",
          [](CompressingHook& hook) {
            hook.executor().withCompressor(
                [](compress::Compressor& c) { c.stepSkipped(); });
          },
          "Call it after a step whose gradients were not applied. It adds the "
          "values that were sent in this step to the residuals again.",
          NoGil())
      .def(
          "stop",
          [](CompressingHook& hook, double patience_s) {
            hook.executor().stop(
                std::chrono::milliseconds(int64_t(patience_s * 1e3)));
          },
          "Waits at most `patience_s` seconds for the queued buckets. If they "
          "take longer, interrupts their messages and waits as long again. "
          "Then ends the thread, or abandons it if it is still busy.",
          py::arg("patience_s"),
          NoGil());
}

void bindConnections(py::module_& m) {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(int64_t(seconds * 1e3));
  };
  py::class_<net::Mesh, std::shared_ptr<net::Mesh>>(
      m, "Mesh", "TCP connections of this rank to the other ranks of a group.")
      .def_property_readonly(
          "usable",
          &net::Mesh::usable,
          "False after an exchange has failed or has been abandoned.");
  py::class_<net::Listener>(
      m, "Listener", "A socket that accepts connections from other ranks.")
      .def(
          py::init<const std::string&>(),
          "Listens on a free port of `address`, a numeric address of this "
          "host.",
          py::arg("address"))
      .def_property_readonly(
          "endpoint",
          &net::Listener::endpoint,
          "Address, port and secret that the other ranks need.")
      .def(
          "connect",
          [milliseconds](
              net::Listener& listener,
              int rank,
              const std::vector<std::string>& endpoints,
              std::vector<int> names,
              double patience_s,
              double timeout_s) {
            return listener.connect(
                rank,
                endpoints,
                std::move(names),
                milliseconds(patience_s),
                milliseconds(timeout_s));
          },
          "Connects this rank with all other ranks. Every rank must call it. "
          "`endpoints` and `names` have one entry for each rank; errors print "
          "the number in `names`. Raises RuntimeError if there is no "
          "connection to a rank.",
          py::arg("rank"),
          py::arg("endpoints"),
          py::arg("names"),
          py::arg("patience_s"),
          py::arg("timeout_s"),
          py::call_guard<py::gil_scoped_release>());
}

} // namespace commprof::tune
