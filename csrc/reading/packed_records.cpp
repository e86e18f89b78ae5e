#include "reading/packed_records.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace commprof::reading {

namespace {

template <class T>
struct Field {
  size_t offset;

  uint64_t of(const uint8_t* row) const {
    T value;
    std::memcpy(&value, row + offset, sizeof(value));
    return uint64_t(value);
  }
};

template <class Use>
void forEachField(Use use) {
  use(Field<uint64_t>{offsetof(Record, timestamp_ns)});
  use(Field<uint64_t>{offsetof(Record, op_id)});
  use(Field<uint8_t>{offsetof(Record, op)});
  use(Field<uint8_t>{offsetof(Record, dtype)});
  use(Field<uint8_t>{offsetof(Record, reduce_op)});
  use(Field<uint32_t>{offsetof(Record, group)});
  use(Field<uint32_t>{offsetof(Record, thread)});
  use(Field<uint32_t>{offsetof(Record, aux)});
  use(Field<uint64_t>{offsetof(Record, bytes_in)});
  use(Field<uint64_t>{offsetof(Record, bytes_out)});
  use(Field<uint32_t>{offsetof(Record, seq)});
  use(Field<uint32_t>{offsetof(Record, flags)});
  use(Field<uint64_t>{offsetof(Record, value)});
}

constexpr Field<uint8_t> kKind = {offsetof(Record, kind)};

size_t widthOf(uint64_t largest) {
  if (largest == 0) {
    return 0;
  }
  if (largest <= std::numeric_limits<uint8_t>::max()) {
    return 1;
  }
  if (largest <= std::numeric_limits<uint16_t>::max()) {
    return 2;
  }
  return largest <= std::numeric_limits<uint32_t>::max() ? 4 : 8;
}

template <class Narrow, class T>
void write(const Rows& rows, Field<T> field, uint64_t base, uint8_t* out) {
  for (const uint8_t* row : rows) {
    const auto value = Narrow(field.of(row) - base);
    std::memcpy(out, &value, sizeof(value));
    out += sizeof(value);
  }
}

// Sets `by` to the row's value minus `before`, and then sets `before` to the
// row's value. Returns false if the difference does not fit in `by`.
template <class T>
bool difference(
    Field<T> field,
    const uint8_t* row,
    uint64_t& before,
    int32_t& by) {
  const uint64_t value = field.of(row);
  const auto whole = int64_t(value - before);
  before = value;
  by = int32_t(whole);
  return whole == by;
}

// Packs the differences between the values, if all of them fit in 4 bytes.
template <class T>
bool packDifferences(
    const Rows& rows,
    Field<T> field,
    PackedField& packed,
    std::vector<uint8_t>& data) {
  const uint64_t first = field.of(rows.front());
  uint64_t before = first;
  int32_t by = 0;
  for (const uint8_t* row : rows) {
    if (!difference(field, row, before, by)) {
      return false;
    }
  }
  const size_t offset =
      (data.size() + sizeof(by) - 1) / sizeof(by) * sizeof(by);
  data.resize(offset + rows.size() * sizeof(by));
  uint8_t* out = data.data() + offset;
  before = first;
  for (const uint8_t* row : rows) {
    difference(field, row, before, by);
    std::memcpy(out, &by, sizeof(by));
    out += sizeof(by);
  }
  packed = {first, kDifferences, offset};
  return true;
}

template <class T>
PackedField pack(const Rows& rows, Field<T> field, std::vector<uint8_t>& data) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t most = 0;
  for (const uint8_t* row : rows) {
    const uint64_t value = field.of(row);
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  const size_t width = widthOf(most - least);
  if (width == 0) {
    return {least, 0, 0};
  }
  if (PackedField packed;
      width == sizeof(uint64_t) && packDifferences(rows, field, packed, data)) {
    return packed;
  }
  const size_t offset = (data.size() + width - 1) / width * width;
  data.resize(offset + rows.size() * width);
  uint8_t* const out = data.data() + offset;
  switch (width) {
    case 1:
      write<uint8_t>(rows, field, least, out);
      break;
    case 2:
      write<uint16_t>(rows, field, least, out);
      break;
    case 4:
      write<uint32_t>(rows, field, least, out);
      break;
    default:
      write<uint64_t>(rows, field, least, out);
  }
  return {least, width, offset};
}

template <class T>
T at(std::span<const uint8_t> data, size_t offset) {
  T value;
  std::memcpy(&value, data.data() + offset, sizeof(value));
  return value;
}

template <class Narrow>
void widen(const PackedColumn& column, uint64_t* out) {
  for (uint64_t row = 0; row < column.count; ++row) {
    const size_t offset = column.field.offset + row * sizeof(Narrow);
    out[row] = column.field.base + at<Narrow>(column.data, offset);
  }
}

void addUp(const PackedColumn& column, uint64_t* out) {
  uint64_t value = column.field.base;
  for (uint64_t row = 0; row < column.count; ++row) {
    const size_t offset = column.field.offset + row * sizeof(int32_t);
    // In a column that was cut, the first difference refers to a record that
    // was cut off.
    value += row == 0 ? 0 : uint64_t(int64_t(at<int32_t>(column.data, offset)));
    out[row] = value;
  }
}

bool unpack(const PackedColumn& column, uint64_t* out) {
  const uint64_t width = column.field.width;
  const uint64_t bytes = width == kDifferences ? sizeof(int32_t) : width;
  if (bytes > sizeof(uint64_t) || column.field.offset > column.data.size() ||
      column.count * bytes > column.data.size() - column.field.offset) {
    return false;
  }
  switch (width) {
    case 0:
      std::fill_n(out, column.count, column.field.base);
      return true;
    case 1:
      widen<uint8_t>(column, out);
      return true;
    case 2:
      widen<uint16_t>(column, out);
      return true;
    case 4:
      widen<uint32_t>(column, out);
      return true;
    case kDifferences:
      addUp(column, out);
      return true;
    case 8:
      widen<uint64_t>(column, out);
      return true;
    default:
      return false;
  }
}

} // namespace

bool unpackColumns(
    std::span<const PackedColumn> columns,
    std::span<uint64_t> values) {
  size_t written = 0;
  for (const PackedColumn& column : columns) {
    if (column.count > values.size() - written ||
        !unpack(column, values.data() + written)) {
      return false;
    }
    written += column.count;
  }
  return true;
}

PackedRecords packRows(const Rows& all) {
  PackedRecords packed;
  packed.kinds.reserve(all.size());
  std::array<Rows, 256> rows;
  for (const uint8_t* const row : all) {
    const auto kind = uint8_t(kKind.of(row));
    packed.kinds.push_back(kind);
    rows[kind].push_back(row);
  }
  for (size_t kind = 0; kind < rows.size(); ++kind) {
    if (rows[kind].empty()) {
      continue;
    }
    packed.present.push_back(uint8_t(kind));
    packed.counts.push_back(rows[kind].size());
    auto& fields = packed.fields.emplace_back();
    size_t number = 0;
    forEachField([&](auto field) {
      fields[number++] = pack(rows[kind], field, packed.data);
    });
  }
  return packed;
}

PackedRecords packRecords(std::span<const uint8_t> records) {
  Rows rows(records.size() / sizeof(Record));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = records.data() + i * sizeof(Record);
  }
  return packRows(rows);
}

} // namespace commprof::reading
