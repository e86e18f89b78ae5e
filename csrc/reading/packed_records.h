// The records of one trace, packed by kind and column, in as few bytes as the
// values need. The packing is lossless: commprof/trace/packed.py restores the
// records. Records of one kind keep their order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/record.h"

namespace commprof::reading {

// Number of fields of a record without its kind. The fields have the order of
// Record.
inline constexpr size_t kFields = 13;

// A column holds the values of one field in the records of one kind. A value is
// `base` plus an unsigned integer of `width` bytes. The first integer is at
// `offset`. If `width` is 0, all values are `base`.
//
// If `width` is kDifferences, `base` is the first value, and each integer is
// the signed difference from the previous value, in 4 bytes. The first integer
// is 0.
inline constexpr uint64_t kDifferences = 5;

struct PackedField {
  uint64_t base = 0;
  uint64_t width = 0;
  uint64_t offset = 0;
};

struct PackedRecords {
  std::vector<uint8_t> kinds; // kind of each record, in order
  std::vector<uint8_t> present; // kinds that occur, ascending
  std::vector<uint64_t> counts; // number of records of each kind in `present`
  // Fields of each kind in `present`.
  std::vector<std::array<PackedField, kFields>> fields;
  std::vector<uint8_t> data; // columns begin at multiples of their width
};

// Addresses at which records begin; they need not be aligned.
using Rows = std::vector<const uint8_t*>;

PackedRecords packRows(const Rows& rows);

// `records`: the bytes of whole records; they need not be aligned.
PackedRecords packRecords(std::span<const uint8_t> records);

// A column of one chunk of packed records.
struct PackedColumn {
  std::span<const uint8_t> data; // data of the whole chunk
  PackedField field;
  uint64_t count = 0;
};

// Writes the values of all columns, one column after the other. Returns false
// if a column reaches beyond its data or has an unknown width. Values of later
// columns are then not written.
bool unpackColumns(
    std::span<const PackedColumn> columns,
    std::span<uint64_t> values);

} // namespace commprof::reading
