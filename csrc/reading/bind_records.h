#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include "reading/packed_records.h"

namespace commprof {

using PackedBytes = pybind11::array_t<uint8_t, pybind11::array::c_style>;
using PackedNumbers = pybind11::array_t<uint64_t>;
// Arrays in the order of PackedRecords: kinds, present, counts, fields and
// data. The fields are an array [kind, field, 3] of base, width and offset.
using PackedParts = pybind11::typing::
    Tuple<PackedBytes, PackedBytes, PackedNumbers, PackedNumbers, PackedBytes>;

PackedParts partsOf(const reading::PackedRecords& packed);

void bindRecords(pybind11::module_& m);

} // namespace commprof
