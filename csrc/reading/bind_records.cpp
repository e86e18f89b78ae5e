// Python bindings of packed records: no logic here. The GIL is released while
// records are packed.
#include "reading/bind_records.h"

#include <pybind11/numpy.h>
#include <pybind11/typing.h>

namespace py = pybind11;

namespace commprof {

namespace {

using Bytes = PackedBytes;
using Numbers = PackedNumbers;

template <class T>
py::array_t<T> arrayOf(const std::vector<T>& values) {
  return py::array_t<T>(py::ssize_t(values.size()), values.data());
}

} // namespace

PackedParts partsOf(const reading::PackedRecords& packed) {
  const std::vector<py::ssize_t> shape = {
      py::ssize_t(packed.fields.size()), py::ssize_t(reading::kFields), 3};
  return PackedParts(
      py::make_tuple(
          arrayOf(packed.kinds),
          arrayOf(packed.present),
          arrayOf(packed.counts),
          Numbers(
              shape, reinterpret_cast<const uint64_t*>(packed.fields.data())),
          arrayOf(packed.data)));
}

void bindRecords(py::module_& m) {
  m.def(
      "pack_records",
      [](const Bytes& records) {
        const std::span<const uint8_t> bytes(
            records.data(), size_t(records.size()));
        reading::PackedRecords packed;
        {
          const py::gil_scoped_release release;
          packed = reading::packRecords(bytes);
        }
        return partsOf(packed);
      },
      "Returns five arrays: the kind of each record; the kinds that occur; the "
      "number of records of each of these kinds; base, width and offset of "
      "each column, as [kind, field, 3]; and the bytes of the columns.",
      py::arg("records"));
  m.def(
      "unpack_columns",
      [](const py::typing::List<Bytes>& chunks, const Numbers& stored) {
        const auto rows = stored.unchecked<2>();
        if (rows.shape(0) != py::ssize_t(chunks.size()) || rows.shape(1) != 4) {
          throw py::value_error(
              "expected one row [count, base, width, offset] per chunk");
        }
        std::vector<Bytes> kept; // keeps the arrays of the spans alive
        std::vector<reading::PackedColumn> columns;
        uint64_t count = 0;
        for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
          kept.push_back(chunks[size_t(i)].cast<Bytes>());
          const std::span<const uint8_t> data(
              kept.back().data(), size_t(kept.back().size()));
          const reading::PackedField field = {
              rows(i, 1), rows(i, 2), rows(i, 3)};
          columns.push_back({data, field, rows(i, 0)});
          count += rows(i, 0);
        }
        Numbers values((py::ssize_t(count)));
        const std::span<uint64_t> written(values.mutable_data(), size_t(count));
        if (!reading::unpackColumns(columns, written)) {
          throw py::value_error(
              "a column reaches beyond its data or has an unknown width");
        }
        return values;
      },
      "Returns the values of one field, from several chunks of packed records. "
      "`stored` has a row [count, base, width, offset] for each chunk.",
      py::arg("chunks"),
      py::arg("stored"));
}

} // namespace commprof
