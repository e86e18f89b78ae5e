#include "reading/alike_dictionaries.h"

#include <pybind11/stl.h>

#include <cstring>

namespace py = pybind11;

namespace commprof {

namespace {

constexpr int kDescribes = -3, kIgnored = -2, kTruth = -1;
constexpr int kDeepest = 64;

template <class Number>
void appendNumber(std::string& text, Number value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void appendText(std::string& text, PyObject* value) {
  const int kind = PyUnicode_KIND(value);
  const auto bytes = size_t(PyUnicode_GET_LENGTH(value)) * size_t(kind);
  text += 's';
  text += char('0' + kind);
  appendNumber(text, bytes);
  text.append(static_cast<const char*>(PyUnicode_DATA(value)), bytes);
}

void appendInteger(std::string& text, PyObject* value) {
  int isLarge = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &isLarge);
  if (isLarge == 0) {
    text += 'i';
    appendNumber(text, number);
    return;
  }
  const auto digits = py::reinterpret_steal<py::object>(PyObject_Repr(value));
  if (!digits) {
    throw py::error_already_set();
  }
  text += 'l';
  appendText(text, digits.ptr());
}

// Returns the value of an integer from 0 to 2^63 - 1; -1 for anything else.
int64_t columnValue(PyObject* value) {
  if (!PyLong_CheckExact(value)) {
    return -1;
  }
  int isLarge = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &isLarge);
  return isLarge != 0 || number < 0 ? -1 : int64_t(number);
}

bool isTrue(PyObject* value) {
  const int truth = PyObject_IsTrue(value);
  if (truth < 0) {
    throw py::error_already_set();
  }
  return truth != 0;
}

} // namespace

AlikeDictionaries::AlikeDictionaries(
    const std::vector<std::string>& integers,
    const std::vector<std::string>& truths,
    const std::vector<std::string>& ignored)
    : columns_(integers.size()) {
  for (const std::string& key : ignored) {
    roles_[key] = kIgnored;
  }
  for (const std::string& key : truths) {
    roles_[key] = kTruth;
  }
  for (size_t column = 0; column < integers.size(); ++column) {
    roles_[integers[column]] = int(column);
  }
}

AlikeDictionaries::Read AlikeDictionaries::read(
    const py::typing::List<py::object>& dictionaries) {
  const size_t count = dictionaries.size();
  py::array_t<int64_t> numbers{py::ssize_t(count)};
  py::array_t<int64_t> columns({py::ssize_t(count), py::ssize_t(columns_)});
  int64_t* const number = numbers.mutable_data();
  int64_t* const column = columns.mutable_data();
  std::fill(column, column + count * columns_, -1);
  roleOfKey_.clear();
  keys_.clear();
  Seen seen;
  std::string text;
  for (size_t row = 0; row < count; ++row) {
    PyObject* const dictionary =
        PyList_GET_ITEM(dictionaries.ptr(), py::ssize_t(row));
    if (!PyDict_CheckExact(dictionary)) {
      throw py::value_error("an entry is not a dictionary");
    }
    text.clear();
    PyObject *key = nullptr, *value = nullptr;
    py::ssize_t place = 0;
    while (PyDict_Next(dictionary, &place, &key, &value) != 0) {
      auto role = roleOfKey_.find(key);
      if (role == roleOfKey_.end()) {
        const auto named = PyUnicode_CheckExact(key)
            ? roles_.find(
                  py::cast<std::string>(
                      py::str(py::handle(key))
                          .attr("encode")("utf-8", "replace")))
            : roles_.end();
        role = roleOfKey_
                   .emplace(
                       key, named == roles_.end() ? kDescribes : named->second)
                   .first;
        keys_.push_back(py::reinterpret_borrow<py::object>(key));
      }
      if (role->second >= 0) {
        column[row * columns_ + size_t(role->second)] = columnValue(value);
      } else if (role->second != kIgnored) {
        append(text, key, seen, 0);
        if (role->second == kTruth) {
          text += isTrue(value) ? 'T' : 'F';
        } else {
          append(text, value, seen, 0);
        }
      }
    }
    number[row] = numberOf(dictionaries_, text);
  }
  return py::make_tuple(numbers, columns);
}

int64_t AlikeDictionaries::numberOf(Numbers& numbers, const std::string& text) {
  return numbers.emplace(text, int64_t(numbers.size())).first->second;
}

void AlikeDictionaries::append(
    std::string& text,
    PyObject* value,
    Seen& seen,
    int depth) {
  if (depth > kDeepest) {
    throw py::value_error("the values of an entry are nested too deeply");
  }
  if (PyUnicode_CheckExact(value)) {
    appendText(text, value);
  } else if (value == Py_None || PyBool_Check(value)) {
    text += value == Py_None ? 'N' : value == Py_True ? 'T' : 'F';
  } else if (PyLong_CheckExact(value)) {
    appendInteger(text, value);
  } else if (PyFloat_CheckExact(value)) {
    text += 'f';
    appendNumber(text, PyFloat_AS_DOUBLE(value));
  } else if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    const bool isList = PyList_CheckExact(value);
    const py::ssize_t count = PySequence_Fast_GET_SIZE(value);
    text += isList ? '[' : '(';
    appendNumber(text, count);
    for (py::ssize_t i = 0; i < count; ++i) {
      append(text, PySequence_Fast_GET_ITEM(value, i), seen, depth + 1);
    }
  } else if (PyDict_CheckExact(value)) {
    auto known = seen.find(value);
    if (known == seen.end()) {
      std::string within;
      PyObject *key = nullptr, *item = nullptr;
      py::ssize_t place = 0;
      while (PyDict_Next(value, &place, &key, &item) != 0) {
        append(within, key, seen, depth + 1);
        append(within, item, seen, depth + 1);
      }
      known = seen.emplace(value, numberOf(inner_, within)).first;
    }
    text += 'd';
    appendNumber(text, known->second);
  } else {
    throw py::value_error("an entry holds more than plain values");
  }
}

void bindAlikeDictionaries(py::module_& m) {
  py::class_<AlikeDictionaries>(
      m, "AlikeDictionaries", "Gives equal dictionaries the same id.")
      .def(
          py::init<
              const std::vector<std::string>&,
              const std::vector<std::string>&,
              const std::vector<std::string>&>(),
          py::arg("integers"),
          py::arg("truths"),
          py::arg("ignored"))
      .def(
          "read",
          &AlikeDictionaries::read,
          "Returns the ids of dictionaries, and a column for each integer key.",
          py::arg("dictionaries"));
}

} // namespace commprof
