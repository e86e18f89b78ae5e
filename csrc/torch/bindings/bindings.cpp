// Python bindings of the native module: no logic here.
//
// The GIL is held, except in calls that do file I/O or join a thread. The GIL
// protects no data: locks and atomics do.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <torch/csrc/distributed/c10d/python_comm_hook.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <limits>

#include "base/clock.h"
#include "core/phase_marker.h"
#include "core/process/exit_note.h"
#include "core/process/garbage_spans.h"
#include "core/recorder.h"
#include "nccl_plugin/operations.h"
#include "torch/bindings/bindings.h"
#include "torch/capture/ddp/ddp_hook.h"
#include "torch/capture/ddp/observed_buckets.h"
#include "torch/capture/observer.h"
#include "torch/capture/process_groups.h"
#include "torch/capture/stacks.h"
#include "torch/core_functions.h"
#include "torch/device/device_events.h"

namespace py = pybind11;
using namespace commprof;

namespace {

py::tuple kindNames() {
  py::list out;
#define X(name, text) out.append(text);
  COMMPROF_KINDS(X)
#undef X
  return py::tuple(out);
}

py::tuple opNames() {
  py::list out;
#define X(name, text, dispatcher, awaits) out.append(text);
  COMMPROF_OPS(X)
#undef X
  return py::tuple(out);
}

py::tuple phaseNames() {
  py::list out;
#define X(name, text) out.append(text);
  COMMPROF_PHASES(X)
#undef X
  return py::tuple(out);
}

py::tuple modeNames() {
  py::list out;
#define X(name, text) out.append(text);
  COMMPROF_MODES(X)
#undef X
  return py::tuple(out);
}

py::tuple dtypeNames() {
  py::list out;
  for (int i = 0; i < int(c10::ScalarType::NumOptions); ++i) {
    out.append(c10::toString(static_cast<c10::ScalarType>(i)));
  }
  return py::tuple(out);
}

std::shared_ptr<c10d::CommHookInterface> pythonHook(
    py::object state,
    py::object hook) {
  if (hook.is_none()) {
    return nullptr;
  }
  return std::make_shared<c10d::PythonCommHook>(
      std::move(state), std::move(hook));
}

// Every step calls mark_step and PhaseMarker's begin and end. They use Python's
// C interface, because pybind11's dispatcher takes hundreds of instructions.

// Returns null and sets TypeError for an object whose __init__ was not called.
PhaseMarker* markerOf(PyObject* self) {
  auto* held = reinterpret_cast<py::detail::instance*>(self);
  auto* marker = static_cast<PhaseMarker*>(held->simple_value_holder[0]);
  if (marker == nullptr) {
    PyErr_SetString(PyExc_TypeError, "PhaseMarker.__init__() was not called");
  }
  return marker;
}

PyObject* beginPhase(PyObject* self, PyObject* /*unused*/) {
  PhaseMarker* marker = markerOf(self);
  if (marker == nullptr) {
    return nullptr;
  }
  marker->begin();
  Py_RETURN_NONE;
}

PyObject* endPhase(
    PyObject* self,
    PyObject* const* args,
    Py_ssize_t count,
    PyObject* names) {
  PhaseMarker* marker = markerOf(self);
  if (marker == nullptr) {
    return nullptr;
  }
  unsigned long samples = 0;
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (count + named > 1) {
    PyErr_SetString(PyExc_TypeError, "end() takes at most 1 argument: samples");
    return nullptr;
  }
  if (named == 1 &&
      PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "samples") !=
          0) {
    PyErr_Format(
        PyExc_TypeError,
        "end() has no argument %R, only samples",
        PyTuple_GET_ITEM(names, 0));
    return nullptr;
  }
  if (count + named == 1) {
    const auto number =
        py::reinterpret_steal<py::object>(PyNumber_Index(args[0]));
    samples = number ? PyLong_AsUnsignedLong(number.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) {
      return nullptr;
    }
    if (samples > kSamplesUnknown) {
      PyErr_SetString(PyExc_OverflowError, "samples exceeds 32 bits");
      return nullptr;
    }
  }
  marker->end(uint32_t(samples));
  Py_RETURN_NONE;
}

PyObject* markStepNow(
    PyObject* /*module*/,
    PyObject* const* args,
    Py_ssize_t count) {
  if (count < 2 || count > 3) {
    PyErr_SetString(
        PyExc_TypeError,
        "mark_step() takes 2 or 3 arguments: step, ended, found");
    return nullptr;
  }
  const unsigned long long step = PyLong_AsUnsignedLongLong(args[0]);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  const int ended = PyObject_IsTrue(args[1]);
  if (ended < 0) {
    return nullptr;
  }
  const unsigned long found =
      count == 3 ? PyLong_AsUnsignedLong(args[2]) : uint32_t{kStepDeclared};
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  if (found > std::numeric_limits<uint32_t>::max()) {
    PyErr_SetString(PyExc_OverflowError, "found exceeds 32 bits");
    return nullptr;
  }
  markStep(step, ended != 0, uint32_t(found));
  Py_RETURN_NONE;
}

template <typename Function>
PyCFunction asMethod(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// The stub is generated from these docstrings, so they have pybind11's form.
PyMethodDef phase_methods[] = {
    {"begin", beginPhase, METH_NOARGS, "begin(self) -> None"},
    {"end",
     asMethod(endPhase),
     METH_FASTCALL | METH_KEYWORDS,
     "end(self, samples: typing.SupportsIndex = 0) -> None"}};
PyMethodDef mark_step_method = {
    "mark_step",
    asMethod(markStepNow),
    METH_FASTCALL,
    "mark_step(step: int, ended: bool, found: int = 0, /) -> None\n\n"
    "Records a step boundary now; `ended` is False if no step ends there."};

} // namespace

PYBIND11_MODULE(COMMPROF_MODULE, m, py::mod_gil_not_used()) {
  m.doc() = "Native capture of commprof, built for one torch version.";
  m.attr("TORCH_VERSION") = TORCH_VERSION_STR;
  m.attr("KINDS") = kindNames();
  m.attr("OPS") = opNames();
  m.attr("PHASES") = phaseNames();
  m.attr("MODES") = modeNames();
  m.attr("DTYPES") = dtypeNames();

  py::class_<RecorderStats>(
      m, "Stats", "Counters of the running or the last capture.")
      .def_readonly("records_written", &RecorderStats::records_written)
      .def_readonly("records_dropped", &RecorderStats::records_dropped)
      .def_readonly("records_unwritten", &RecorderStats::records_unwritten)
      .def_readonly("trace_bytes", &RecorderStats::trace_bytes)
      .def_readonly("rings", &RecorderStats::rings)
      .def_readonly(
          "rings_in_private_memory", &RecorderStats::rings_in_private_memory)
      .def_readonly("write_errno", &RecorderStats::write_errno)
      .def_readonly("records_summarised", &RecorderStats::records_summarised)
      .def_readonly("signal_taken", &RecorderStats::signal_taken);

  py::class_<GarbageSpans>(
      m,
      "GarbageSpans",
      "Callback for gc.callbacks that records long garbage collections. It "
      "runs no Python code, because a Ctrl-C in a Python callback would be "
      "lost.")
      .def(py::init<>())
      .def(
          "__call__",
          [](GarbageSpans& spans, const py::str& phase, const py::object&) {
            const uint64_t now_ns = nowNs();
            if (PyUnicode_CompareWithASCIIString(phase.ptr(), "start") == 0) {
              spans.begin(now_ns);
            } else {
              spans.end(now_ns);
            }
          },
          py::arg("phase"),
          py::arg("info"))
      .def("spans", &GarbageSpans::spans)
      .def("total_ns", &GarbageSpans::totalNs);

  m.def("now_ns", &nowNs, "Returns CLOCK_MONOTONIC in nanoseconds.");
  m.def(
      "start",
      [](const std::filesystem::path& trace_path, // any bytes, not only UTF-8
         const std::filesystem::path& ring_prefix,
         const std::string& metadata_json,
         uint64_t session,
         uint32_t flush_interval_ms,
         uint8_t mode,
         const std::filesystem::path& control_path,
         int switch_signal) {
        const py::gil_scoped_release release;
        clearDevices();
        Recorder::instance().start(
            {.trace_path = trace_path.string(),
             .ring_prefix = ring_prefix.string(),
             .metadata_json = metadata_json,
             .session = session,
             .flush_interval_ms = flush_interval_ms,
             .mode = Mode(mode),
             .control_path = control_path.string(),
             .switch_signal = switch_signal});
      },
      "Opens the trace and enables capture.",
      py::arg("trace_path"),
      py::arg("ring_prefix"),
      py::arg("metadata_json"),
      py::arg("session"),
      py::arg("flush_interval_ms") = 200,
      py::arg("mode") = uint8_t(Mode::kFull),
      py::arg("control_path") = "",
      py::arg("switch_signal") = 0);
  m.def(
      "set_mode",
      [](uint8_t mode) {
        const py::gil_scoped_release release;
        Recorder::instance().setMode(Mode(mode));
      },
      "Switches the mode, given by its position in MODES.",
      py::arg("mode"));
  m.def(
      "mode",
      [] { return uint8_t(Recorder::instance().mode()); },
      "Returns the mode's position in MODES.");
  m.def(
      "stop",
      [] {
        const py::gil_scoped_release release;
        drainDevices();
        nccl::settleOperations(nullptr);
        Recorder::instance().stop();
      },
      "Disables capture and closes the trace.");
  m.def(
      "add_metadata",
      [](const std::string& json) {
        Recorder::instance().addDocument(BlockType::kMetadata, json);
      },
      "Adds keys to the metadata of this trace and of every later one.",
      py::arg("json"));
  m.def(
      "note_exit_status",
      [](const std::filesystem::path& path) { noteExitStatus(path.string()); },
      "When this process ends, appends its exit code to the closed trace at "
      "`path`. Does not append the codes 0 and 120.",
      py::arg("path"));
  m.def(
      "flush",
      [] {
        const py::gil_scoped_release release;
        Recorder::instance().flush();
      },
      "Takes the records of all threads now: in full mode into the trace, in "
      "always-on mode into a summary, which is written. In off mode, discards "
      "them.");
  m.def(
      "stats",
      [] { return Recorder::instance().stats(); },
      "Returns the counters of the open trace, or of the last trace if none is "
      "open.");
  m.def(
      "started",
      [] { return Recorder::instance().started(); },
      "True if a trace is open in this process.");
  m.def(
      "set_enabled",
      [](bool on) { Recorder::instance().setEnabled(on); },
      "Switches recording on or off; the trace stays open.",
      py::arg("on"));
  m.def(
      "enabled",
      [] { return Recorder::instance().enabled(); },
      "True if records are being taken.");
  m.attr("mark_step") = py::reinterpret_steal<py::object>(
      PyCFunction_New(&mark_step_method, nullptr));
  m.def(
      "record_cost_ns",
      &recordCostNs,
      "Takes `count` records and returns the mean cost of one record, in "
      "nanoseconds. The cost includes the reading of the clock.",
      py::arg("count"));

  py::class_<PhaseMarker> marker(
      m,
      "PhaseMarker",
      "Context manager that records one phase of a step.",
      py::is_final());
  marker.def(py::init<uint8_t>(), py::arg("phase"))
      .def(
          "__enter__",
          [](PhaseMarker& self) -> PhaseMarker& {
            self.begin();
            return self;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](PhaseMarker& self, const py::args&) { self.end(); });
  for (PyMethodDef& method : phase_methods) {
    marker.attr(method.ml_name) =
        py::reinterpret_steal<py::object>(PyDescr_NewMethod(
            reinterpret_cast<PyTypeObject*>(marker.ptr()), &method));
  }

  m.def(
      "install_observer",
      &installObserver,
      "Puts a recording kernel before every c10d operator; returns the "
      "operators' names.");
  m.def(
      "note_group_token",
      [](const c10::intrusive_ptr<c10d::ProcessGroup>& group,
         const std::string& token) { noteGroupToken(*group, token); },
      py::arg("group"),
      py::arg("token"),
      "Sets the name, equal on all ranks, for a group to which c10d gave no "
      "name. Call it before the group's first collective.");
  m.def(
      "uninstall_observer",
      &uninstallObserver,
      "Removes the recording kernels: operators then run their original "
      "kernels only.");
  m.def(
      "set_stacks",
      &setStacks,
      "Sets whether the Python callers of operations are recorded. If `most` "
      "is not 0, only the callers of the next `most` operations are recorded.",
      py::arg("on"),
      py::arg("most") = 0);

  bindHosts(m);
  bindFutures(m);
  bindDevices(m);

  m.attr(kCoreFunctionsAttribute) =
      py::capsule(&coreFunctions(), kCoreFunctionsName);
  py::class_<InnerHook, std::shared_ptr<InnerHook>>(
      m,
      "InnerHook",
      "A communication hook in C++ from another package, such as "
      "commprof.tune.");
  py::class_<BucketHook, std::shared_ptr<BucketHook>>(
      m, "BucketHook", "The DDP communication hook of one model.")
      .def_static(
          "attach",
          [](const std::shared_ptr<c10d::Reducer>& reducer,
             const c10::intrusive_ptr<c10d::ProcessGroup>& group,
             py::object hook,
             py::object state) {
            return BucketHook::attach(
                *reducer, group, pythonHook(std::move(state), std::move(hook)));
          },
          "Registers a hook with a DDP reducer; the registered hook calls "
          "`hook(state, bucket)`.",
          py::arg("reducer"),
          py::arg("process_group"),
          py::arg("hook"),
          py::arg("state"))
      .def(
          "set_hook",
          [](BucketHook& self, py::object hook, py::object state) {
            self.setInner(pythonHook(std::move(state), std::move(hook)));
          },
          "From the next bucket on, the registered hook calls this Python hook "
          "instead of the previous one.",
          py::arg("hook"),
          py::arg("state"))
      .def(
          "set_inner",
          [](BucketHook& self, std::shared_ptr<InnerHook> hook) {
            self.setInner(std::move(hook));
          },
          "From the next bucket on, the registered hook calls this hook in C++ "
          "instead of the previous one.",
          py::arg("hook"))
      .def_property(
          "recording", &BucketHook::recording, &BucketHook::setRecording);

  py::class_<ObservedBuckets, std::shared_ptr<ObservedBuckets>>(
      m,
      "ObservedBuckets",
      "Records the buckets of one model until this object is destroyed. "
      "Registers no hook.")
      .def(
          py::init(&ObservedBuckets::watch),
          "Observes the buckets of this DDP reducer.",
          py::arg("reducer"))
      .def_property(
          "recording",
          &ObservedBuckets::recording,
          &ObservedBuckets::setRecording);
}
