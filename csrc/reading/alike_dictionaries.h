// Gives equal dictionaries the same id, so that a reader in Python examines
// only one dictionary for each id.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace commprof {

// Dictionaries have the same id if they have the same keys, in the same order,
// with equal values of the same types. Values of the keys in `ignored` and
// `integers` are not compared. Values of the keys in `truths` are compared only
// as true or false. Ids begin at 0 and continue in the next call of read(). The
// caller holds the GIL.
class AlikeDictionaries {
 public:
  using Column = pybind11::array_t<int64_t>;
  using Read = pybind11::typing::Tuple<Column, Column>;

  AlikeDictionaries(
      const std::vector<std::string>& integers,
      const std::vector<std::string>& truths,
      const std::vector<std::string>& ignored);

  // Returns the id of each dictionary, and a matrix with a row for each
  // dictionary and a column for each key in `integers`. An element is -1 if the
  // key is missing, or its value is not an integer from 0 to 2^63 - 1. Throws
  // py::value_error if a value is not plain. Plain values are None, truth
  // values, numbers, strings, and lists, tuples and dictionaries of plain
  // values.
  Read read(const pybind11::typing::List<pybind11::object>& dictionaries);

 private:
  using Numbers = std::unordered_map<std::string, int64_t>;
  using Seen = std::unordered_map<PyObject*, int64_t>;

  static int64_t numberOf(Numbers& numbers, const std::string& text);
  void append(std::string& text, PyObject* value, Seen& seen, int depth);

  // Role of each key: kDescribes, kIgnored, kTruth, or its column.
  std::unordered_map<std::string, int> roles_;
  std::unordered_map<PyObject*, int> roleOfKey_; // by the key's address
  std::vector<pybind11::object> keys_; // keeps the keys of `roleOfKey_` alive
  size_t columns_;
  Numbers dictionaries_;
  Numbers inner_; // ids of inner dictionaries, such as the frames of stacks
};

void bindAlikeDictionaries(pybind11::module_& m);

} // namespace commprof
