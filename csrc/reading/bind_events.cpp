// Python bindings of the scanner of a profiler's events: no logic here.
//
// The GIL is released while a text is scanned. Only one thread may use a
// scanner at a time. A scanner keeps the last scanned text alive for
// arguments().
#include "reading/bind_events.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "recordings/event_scanner.h"

namespace py = pybind11;

namespace commprof {

namespace {

using recordings::EventColumns;
using recordings::EventScanner;
using recordings::Texts;
using Column = std::vector<int64_t> EventColumns::*;

std::string_view utf8Of(const py::str& text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    throw py::error_already_set();
  }
  return {data, size_t(size)};
}

// Converts a position in characters to a position in bytes of UTF-8.
size_t bytesOf(std::string_view text, bool isAscii, size_t characters) {
  if (isAscii) {
    return std::min(characters, text.size());
  }
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool begins = (text[at] & 0xC0) != 0x80;
    if (begins && characters-- == 0) {
      break;
    }
  }
  return at;
}

size_t charactersOf(std::string_view text, bool isAscii, size_t bytes) {
  if (isAscii) {
    return bytes;
  }
  size_t count = 0;
  for (const char c : text.substr(0, bytes)) {
    count += (c & 0xC0) != 0x80 ? 1 : 0;
  }
  return count;
}

struct BoundScanner {
  EventScanner scanner;
  py::str text;

  size_t scan(py::str scanned, size_t at) {
    text = std::move(scanned);
    const std::string_view utf8 = utf8Of(text);
    const bool isAscii = PyUnicode_IS_ASCII(text.ptr());
    const py::gil_scoped_release release;
    const size_t end = scanner.scan(utf8, bytesOf(utf8, isAscii, at));
    return charactersOf(utf8, isAscii, end);
  }
};

py::array_t<int64_t> arrayOf(const std::vector<int64_t>& values) {
  return py::array_t<int64_t>(py::ssize_t(values.size()), values.data());
}

template <Column column>
py::array_t<int64_t> columnOf(const BoundScanner& self) {
  return arrayOf(self.scanner.events().*column);
}

std::vector<std::string> since(const Texts& texts, size_t first) {
  std::vector<std::string> some;
  for (size_t i = first; i < texts.size(); ++i) {
    some.push_back(texts[i]);
  }
  return some;
}

} // namespace

void bindEvents(py::module_& m) {
  py::class_<BoundScanner>(
      m, "TraceEventScanner", "Reads events of a profiler's traces.")
      .def(
          py::init([](std::vector<std::string> categories,
                      std::vector<std::string> kept,
                      std::vector<std::string> integers,
                      std::string collective) {
            return new BoundScanner{
                EventScanner(
                    std::move(categories),
                    std::move(kept),
                    std::move(integers),
                    std::move(collective)),
                py::str()};
          }),
          py::arg("categories"),
          py::arg("kept"),
          py::arg("integers"),
          py::arg("collective"))
      .def(
          "scan",
          &BoundScanner::scan,
          "Reads the events of `text` from position `at` on. The scan stops in "
          "front of an event that is cut off or unusual, and in front of "
          "anything that is not an event. Returns the position at which it "
          "stopped.",
          py::arg("text"),
          py::arg("at"))
      .def_property_readonly(
          "is_unusual",
          [](const BoundScanner& self) { return self.scanner.isUnusual(); },
          "True if the scan stopped at a complete event that only the reader "
          "in Python can read.")
      .def_property_readonly(
          "processes",
          [](const BoundScanner& self) { return self.scanner.processes(); },
          "Pairs of a category's index and a process (`pid`, as JSON) that has "
          "events of this category in the last scanned text.")
      .def_property_readonly("category", &columnOf<&EventColumns::category>)
      .def_property_readonly("name", &columnOf<&EventColumns::name>)
      .def_property_readonly("begin_ns", &columnOf<&EventColumns::startNs>)
      .def_property_readonly("end_ns", &columnOf<&EventColumns::endNs>)
      .def_property_readonly("thread", &columnOf<&EventColumns::thread>)
      .def_property_readonly(
          "correlation", &columnOf<&EventColumns::correlation>)
      .def_property_readonly("device", &columnOf<&EventColumns::device>)
      .def_property_readonly("stream", &columnOf<&EventColumns::stream>)
      .def_property_readonly(
          "is_collective", &columnOf<&EventColumns::isCollective>)
      .def(
          "names",
          [](const BoundScanner& self, size_t first) {
            return since(self.scanner.names(), first);
          },
          "Names of events, as JSON, from index `first` on.",
          py::arg("first"))
      .def(
          "values",
          [](const BoundScanner& self, size_t first) {
            return since(self.scanner.values(), first);
          },
          "Values of the arguments whose keys are in `kept`, as JSON, from "
          "index `first` on.",
          py::arg("first"))
      .def(
          "arguments",
          [](BoundScanner& self, const py::array_t<int64_t>& rows) {
            const std::vector<int64_t> chosen(
                rows.data(), rows.data() + rows.size());
            const EventScanner::Arguments found =
                self.scanner.arguments(utf8Of(self.text), chosen);
            const py::ssize_t count = rows.size();
            const std::vector<py::ssize_t> shape = {
                count,
                count == 0 ? 0 : py::ssize_t(found.integers.size()) / count};
            return py::typing::
                Tuple<py::array_t<int64_t>, py::array_t<int64_t>>(
                    py::make_tuple(
                        arrayOf(found.combination),
                        py::array_t<int64_t>(shape, found.integers.data())));
          },
          "Returns two arrays for the given rows (events). The first array has "
          "the index of each row's combination in `combinations`. The second "
          "array, [row, key], has the values of the keys in `integers`: -1 if "
          "the key is missing, -2 if the value is not a whole number of at "
          "least 0, -3 if only the reader in Python can read the value.",
          py::arg("rows"))
      .def(
          "arguments_text",
          [](BoundScanner& self, size_t row) {
            return std::string(
                self.scanner.argumentsText(utf8Of(self.text), row));
          },
          "The arguments of a row, as JSON.",
          py::arg("row"))
      .def(
          "combinations",
          [](const BoundScanner& self, size_t first) {
            const auto& all = self.scanner.combinations();
            return std::vector<std::vector<int64_t>>(
                all.begin() + ptrdiff_t(std::min(first, all.size())),
                all.end());
          },
          "Returns combinations of arguments, from index `first` on. For each "
          "key in `kept`, a combination has an index in `values`, or -1 if the "
          "key is missing.",
          py::arg("first"));
}

} // namespace commprof
