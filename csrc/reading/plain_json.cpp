#include "reading/plain_json.h"

#include <array>
#include <cmath>
#include <string>

namespace py = pybind11;

namespace commprof {

namespace {

constexpr unsigned kDeepest = 200;

// Each function returns false for a value that it cannot write.
class Writer {
 public:
  explicit Writer(unsigned indent) : indent_(indent) {}

  bool write(PyObject* value, unsigned depth) {
    if (PyUnicode_Check(value)) {
      return writeText(value);
    }
    if (value == Py_None || PyBool_Check(value)) {
      text_ += value == Py_None ? "null" : value == Py_True ? "true" : "false";
      return true;
    }
    if (PyFloat_Check(value)) {
      return writeReal(PyFloat_AS_DOUBLE(value));
    }
    if (PyLong_Check(value)) {
      return writeInteger(value);
    }
    if (depth > kDeepest) {
      return false;
    }
    if (PyDict_CheckExact(value)) { // a subclass may have an order of its own
      return writeMembers(value, depth);
    }
    return (PyList_Check(value) || PyTuple_Check(value)) &&
        writeItems(value, depth);
  }

  const std::string& text() const {
    return text_;
  }

 private:
  void newLine(unsigned depth) {
    text_ += '\n';
    text_.append(size_t(depth) * indent_, ' ');
  }

  bool writeMembers(PyObject* value, unsigned depth) {
    char before = '{';
    PyObject *key = nullptr, *item = nullptr;
    py::ssize_t place = 0;
    while (PyDict_Next(value, &place, &key, &item) != 0) {
      text_ += before;
      before = ',';
      newLine(depth + 1);
      if (!PyUnicode_Check(key) || !writeText(key)) {
        return false;
      }
      text_ += ": ";
      if (!write(item, depth + 1)) {
        return false;
      }
    }
    return ended(before == ',', "{}", '}', depth);
  }

  bool writeItems(PyObject* value, unsigned depth) {
    const py::ssize_t count = PySequence_Fast_GET_SIZE(value);
    for (py::ssize_t i = 0; i < count; ++i) {
      text_ += i == 0 ? '[' : ',';
      newLine(depth + 1);
      if (!write(PySequence_Fast_GET_ITEM(value, i), depth + 1)) {
        return false;
      }
    }
    return ended(count > 0, "[]", ']', depth);
  }

  bool ended(bool isFilled, const char* empty, char end, unsigned depth) {
    if (!isFilled) {
      text_ += empty;
      return true;
    }
    newLine(depth);
    text_ += end;
    return true;
  }

  bool writeReal(double value) {
    if (!std::isfinite(value)) {
      text_ += "null";
      return true;
    }
    char* const digits =
        PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
    if (digits == nullptr) {
      throw py::error_already_set();
    }
    text_ += digits;
    PyMem_Free(digits);
    return true;
  }

  bool writeInteger(PyObject* value) {
    int isLarge = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &isLarge);
    if (isLarge != 0) {
      return false;
    }
    text_ += std::to_string(number);
    return true;
  }

  void writeUnit(unsigned unit) {
    static const char* const digits = "0123456789abcdef";
    text_ += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) {
      text_ += digits[(unit >> shift) & 0xf];
    }
  }

  void writeCharacter(Py_UCS4 c) {
    static const std::array<std::pair<char, char>, 7> named = {{
        {'"', '"'},
        {'\\', '\\'},
        {'\n', 'n'},
        {'\r', 'r'},
        {'\t', 't'},
        {'\f', 'f'},
        {'\b', 'b'},
    }};
    for (const auto& [character, name] : named) {
      if (c == Py_UCS4(character)) {
        text_ += '\\';
        text_ += name;
        return;
      }
    }
    if (c >= ' ' && c <= '~') {
      text_ += char(c);
    } else if (c < 0x10000) {
      writeUnit(c);
    } else { // a pair of surrogates
      writeUnit(0xd800 | ((c - 0x10000) >> 10));
      writeUnit(0xdc00 | ((c - 0x10000) & 0x3ff));
    }
  }

  bool writeText(PyObject* value) {
    const int kind = PyUnicode_KIND(value);
    const void* const data = PyUnicode_DATA(value);
    const py::ssize_t length = PyUnicode_GET_LENGTH(value);
    text_ += '"';
    for (py::ssize_t i = 0; i < length; ++i) {
      const Py_UCS4 c = PyUnicode_READ(kind, data, i);
      if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
        text_ += char(c);
      } else {
        writeCharacter(c);
      }
    }
    text_ += '"';
    return true;
  }

  unsigned indent_;
  std::string text_;
};

} // namespace

py::typing::Optional<py::str> plainJson(
    const py::object& value,
    unsigned indent) {
  Writer writer(indent);
  if (!writer.write(value.ptr(), 0)) {
    return py::none();
  }
  return py::str(writer.text());
}

void bindPlainJson(py::module_& m) {
  m.def(
      "plain_json",
      &plainJson,
      "Returns the JSON that json.dumps writes for plain values, with null for "
      "NaN and infinities. Returns None if a value is not plain.",
      py::arg("value"),
      py::arg("indent"));
}

} // namespace commprof
