// Python bindings of trace files: no logic here. The GIL is held, because other
// threads have nothing to do while a report reads.
#include "reading/bind_traces.h"

#include <string>

#include "reading/bind_records.h"
#include "reading/trace_file.h"

namespace py = pybind11;

namespace commprof {

namespace {

// The metadata usually has 2 to 6 KiB.
constexpr size_t kHeadBytes = 16 << 10;

using Block = py::typing::Tuple<int, py::bytes>;
using SmallTrace =
    py::typing::Tuple<int, int, py::typing::List<Block>, PackedParts, int, int>;
using Head = py::typing::Optional<py::bytes>;

std::string encoded(const py::handle& path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::bytes>(bytes);
}

py::bytes bytesOf(std::span<const uint8_t> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

Head headOf(const py::handle& path) {
  const auto file = reading::readBytes(encoded(path).c_str(), kHeadBytes);
  if (!file || !reading::isTrace(file->whole())) {
    return py::none();
  }
  const auto metadata = reading::firstMetadata(file->whole());
  return metadata ? bytesOf(*metadata) : py::bytes();
}

py::typing::Optional<SmallTrace> smallTrace(const py::str& path) {
  const auto file =
      reading::readBytes(encoded(path).c_str(), reading::kMostBytes);
  if (!file || file->size != file->fileSize) {
    return py::none();
  }
  const auto found = reading::splitTrace(file->whole());
  if (!found) {
    return py::none();
  }
  py::typing::List<Block> blocks;
  for (const auto& [type, payload] : found->documents) {
    blocks.append(py::make_tuple(type, bytesOf(payload)));
  }
  return py::make_tuple(
      found->session,
      file->size,
      blocks,
      partsOf(found->records),
      found->firstNs,
      found->lastNs);
}

} // namespace

void bindTraces(py::module_& m) {
  m.def(
      "file_stamps",
      [](const py::typing::List<py::str>& paths) {
        py::array_t<int64_t> stamps(
            {py::ssize_t(paths.size()), py::ssize_t(4)});
        auto rows = stamps.mutable_unchecked<2>();
        for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
          const auto stamp =
              reading::stampOf(encoded(paths[size_t(i)]).c_str());
          rows(i, 0) = stamp.device;
          rows(i, 1) = stamp.inode;
          rows(i, 2) = stamp.modifiedNs;
          rows(i, 3) = stamp.bytes;
        }
        return stamps;
      },
      "Returns a row for each file: device, inode, modification time in ns, "
      "and size. All of these are -1 if there is no such file.",
      py::arg("paths"));
  m.def(
      "trace_heads",
      [](const py::typing::List<py::str>& paths) {
        py::typing::List<Head> heads;
        for (const py::handle path : paths) {
          heads.append(headOf(path));
        }
        return heads;
      },
      "Returns the metadata of each trace: the JSON of its first block. None "
      "if the file is no trace. Empty if the block is not metadata or is too "
      "large.",
      py::arg("paths"));
  m.def(
      "read_small_trace",
      &smallTrace,
      "Returns the session and the size of a trace; type and payload of its "
      "blocks, except blocks of records and blocks of type kSpare; the packed "
      "records; and the times of the first and the last record. None if the "
      "file is large or damaged.",
      py::arg("path"));
}

} // namespace commprof
