// Reads JSON objects that are nearly equal, such as the metadata of all ranks.
// Equal texts of a key's value are usually parsed only once.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace commprof {

// The caller holds the GIL.
class AlikeObjects {
 public:
  using Parse = pybind11::typing::Callable<
      pybind11::object(pybind11::str, pybind11::bytes)>;
  using Read = pybind11::typing::Optional<
      pybind11::typing::Dict<pybind11::str, pybind11::object>>;

  // `integers`: keys whose values are usually whole numbers, which are read
  // without `parse`. `changing`: keys whose values differ in most objects.
  // `parse`: gets a key and the JSON text of its value, and returns the value.
  AlikeObjects(
      const std::vector<std::string>& integers,
      const std::vector<std::string>& changing,
      Parse parse);

  // Returns the members of the object in `text`. Several objects may share a
  // value. Returns None if the text cannot be split: it must then be parsed as
  // a whole, and may be invalid. Exceptions of `parse` are passed on.
  Read read(std::string_view text);

 private:
  struct Key {
    pybind11::str name;
    bool isInteger = false;
    bool isChanging = false;
  };

  Key keyOf(std::string_view name);
  pybind11::object valueOf(const Key& key, std::string_view text);

  std::unordered_set<std::string> integers_;
  std::unordered_set<std::string> changing_;
  Parse parse_;
  std::unordered_map<std::string, Key> keys_;
  // By key and JSON text.
  std::unordered_map<std::string, pybind11::object> values_;
  size_t heldBytes_ = 0; // total size of the texts in `values_`
  std::string place_; // a key of `values_`, kept to reuse its memory
};

void bindAlikeObjects(pybind11::module_& m);

} // namespace commprof
