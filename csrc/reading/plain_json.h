// Writes plain Python values as indented JSON.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

namespace commprof {

// Returns the text that json.dumps(value, indent=indent) returns, with null for
// NaN and infinities. Returns None if the value is not plain. Plain values are
// None, truth values, floats, integers of up to 64 bits, texts, lists, tuples,
// and dictionaries with texts as keys. The caller holds the GIL.
pybind11::typing::Optional<pybind11::str> plainJson(
    const pybind11::object& value,
    unsigned indent);

void bindPlainJson(pybind11::module_& m);

} // namespace commprof
