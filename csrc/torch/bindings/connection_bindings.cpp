// Python bindings of the connections between ranks: no logic here.
//
// GIL: released while ranks are waited for.
#include <pybind11/stl.h>

#include "compress/sockets/listener.h"
#include "torch/bindings/compression_bindings.h"

namespace py = pybind11;

namespace commprof {

void bindConnections(py::module_& m) {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(int64_t(seconds * 1e3));
  };
  py::class_<net::Mesh, std::shared_ptr<net::Mesh>>(
      m, "Mesh", "A TCP connection between each two ranks of a group.")
      .def_property_readonly(
          "usable",
          &net::Mesh::usable,
          "False once an exchange failed or was given up.");
  py::class_<net::Listener>(m, "Listener", "Where other ranks connect to.")
      .def(
          py::init<const std::string&>(),
          "Listens on any free port of a numeric address of this host.",
          py::arg("address"))
      .def_property_readonly(
          "endpoint",
          &net::Listener::endpoint,
          "What the other ranks need; holds a secret.")
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
          "Called by all ranks with all endpoints, and what errors call the "
          "ranks; RuntimeError names who is missing.",
          py::arg("rank"),
          py::arg("endpoints"),
          py::arg("names"),
          py::arg("patience_s"),
          py::arg("timeout_s"),
          py::call_guard<py::gil_scoped_release>());
}

} // namespace commprof
