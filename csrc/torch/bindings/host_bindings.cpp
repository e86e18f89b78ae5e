// Python bindings for the clocks and arrivals of ranks and hosts. No logic
// here.
#include "torch/bindings/bindings.h"

#include "always_on/arrivals/arrival_board.h"
#include "always_on/hosts/arrival_carrier.h"
#include "clock/clock_sync.h"
#include "core/recorder.h"

namespace py = pybind11;

namespace commprof {

namespace {

void bindClock(py::module_& m) {
  m.def(
      "clock_serve",
      [](const std::string& address, uint64_t token, uint32_t world_size) {
        const ClockServer server =
            ClockSync::instance().serve(address, token, world_size);
        return py::make_tuple(server.port, server.token);
      },
      "Called on rank 0. Answers the other ranks' requests for this process's "
      "clock, until the process ends. Returns the port and token that the "
      "other ranks need.",
      py::arg("address"),
      py::arg("token"),
      py::arg("world_size"));
  m.def(
      "clock_follow",
      [](const std::string& address,
         uint16_t port,
         uint64_t token,
         uint32_t rank,
         uint32_t interval_ms) {
        ClockSync::instance().follow({address, port, token, rank, interval_ms});
      },
      "Compares this process's clock with the clock of rank 0, again and "
      "again until clock_unfollow() is called. `interval_ms`: the longest "
      "interval.",
      py::arg("address"),
      py::arg("port"),
      py::arg("token"),
      py::arg("rank"),
      py::arg("interval_ms") = 10000);
  m.def(
      "clock_unfollow",
      [] {
        const py::gil_scoped_release release;
        ClockSync::instance().unfollow();
      },
      "Compares the clocks a last time, which takes at most 0.8 s. Call it "
      "before `stop`.");
  m.def(
      "clock_same",
      [] { ClockSync::instance().track().setSame(); },
      "Marks this process's clock as the clock of rank 0, so that no clocks "
      "are compared.");
}

void bindArrivals(py::module_& m) {
  m.def(
      "arrivals_create",
      [](uint64_t token, uint32_t rank, uint32_t local_ranks) {
        const auto board =
            HostCarrier::instance().makeBoard(token, local_ranks);
        Recorder::instance().setBoard(board, rank);
        return board->fd();
      },
      "Creates the memory in which the ranks of this host exchange arrivals. "
      "Returns the memory's file descriptor. `local_ranks`: expected number "
      "of ranks on this host.",
      py::arg("token"),
      py::arg("rank"),
      py::arg("local_ranks"));
  m.def(
      "arrivals_open",
      [](const std::string& path, uint64_t token, uint32_t rank) {
        Recorder::instance().setBoard(ArrivalBoard::open(path, token), rank);
        // An earlier process group may have started the carrier.
        HostCarrier::instance().stop();
      },
      "Exchanges arrivals through memory that another rank created. `path`: "
      "/proc/<pid>/fd/<descriptor> of the rank that created the memory.",
      py::arg("path"),
      py::arg("token"),
      py::arg("rank"));
  m.def(
      "arrivals_carry",
      [](const std::string& address, uint64_t token, uint32_t host) {
        return HostCarrier::instance().carry({address, token, host});
      },
      "Starts to exchange arrival times with other hosts, until the process "
      "ends. Call it after arrivals_create. `host`: index of this host. "
      "Returns the port for datagrams with `token`.",
      py::arg("address"),
      py::arg("token"),
      py::arg("host"));
  m.def(
      "arrivals_peer",
      [](uint32_t host,
         const std::string& address,
         uint16_t port,
         uint64_t token) {
        HostCarrier::instance().addPeer({host, address, port, token});
      },
      "Adds a possible parent of this host in the tree of hosts. Call it "
      "after arrivals_carry, and for the best parent first. `host`: index of "
      "the parent, lower than this host's index.",
      py::arg("host"),
      py::arg("address"),
      py::arg("port"),
      py::arg("token"));
  m.def(
      "arrivals_flush",
      [] {
        const py::gil_scoped_release release;
        HostCarrier::instance().flush();
      },
      "Sends the remaining arrivals to other hosts; call it after `stop`.");
  m.def(
      "needs",
      [](uint8_t op,
         uint32_t root,
         bool is_gloo,
         uint32_t size,
         uint32_t rank,
         uint32_t other) {
        return needs({Op(op), root, is_gloo}, size, rank, other);
      },
      "True if `rank` cannot complete an operation before rank `other` of the "
      "group has arrived. Only a test calls this function.",
      py::arg("op"),
      py::arg("root"),
      py::arg("is_gloo"),
      py::arg("size"),
      py::arg("rank"),
      py::arg("other"));
}

} // namespace

void bindHosts(pybind11::module_& m) {
  bindClock(m);
  bindArrivals(m);
}

} // namespace commprof
