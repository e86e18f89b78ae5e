#include "reading/plain_pickle.h"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace commprof {

namespace {

[[noreturn]] void inconsistent() {
  throw py::value_error("it is not a consistent pickle");
}

py::object owned(PyObject* made) {
  if (made == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(made);
}

// State of the unpickler. A mark on the stack is a py::object that holds no
// Python object.
class Machine {
 public:
  explicit Machine(std::string_view data) : rest_(data) {}

  py::object run() {
    while (step(number<uint8_t>())) {
    }
    const py::object value = pop();
    if (!stack_.empty()) {
      inconsistent();
    }
    return value;
  }

 private:
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) {
      throw py::value_error("it is cut off");
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  template <class Number>
  Number number() {
    static_assert(std::endian::native == std::endian::little);
    Number value;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }

  void push(py::object value) {
    stack_.push_back(std::move(value));
  }

  py::object& top() {
    if (stack_.empty()) {
      inconsistent();
    }
    return stack_.back();
  }

  // Removes and returns the topmost value, which must not be a mark.
  py::object pop() {
    py::object value = std::move(top());
    stack_.pop_back();
    if (!value) {
      inconsistent();
    }
    return value;
  }

  // Returns the index of the first value above the last mark.
  size_t marked() const {
    size_t at = stack_.size();
    while (at > 0 && stack_[at - 1]) {
      --at;
    }
    if (at == 0) {
      inconsistent();
    }
    return at;
  }

  py::tuple tupleFrom(size_t first) {
    py::tuple made(stack_.size() - first);
    for (size_t i = first; i < stack_.size(); ++i) {
      if (!stack_[i]) {
        inconsistent();
      }
      PyTuple_SET_ITEM(
          made.ptr(), py::ssize_t(i - first), stack_[i].release().ptr());
    }
    stack_.resize(first);
    return made;
  }

  void tupleOf(size_t count) {
    if (stack_.size() < count) {
      inconsistent();
    }
    py::tuple made = tupleFrom(stack_.size() - count);
    push(std::move(made));
  }

  void appendFrom(size_t first, size_t below) {
    if (below == 0 || !stack_[below - 1] ||
        !PyList_CheckExact(stack_[below - 1].ptr())) {
      inconsistent();
    }
    for (size_t i = first; i < stack_.size(); ++i) {
      if (!stack_[i]) {
        inconsistent();
      }
      if (PyList_Append(stack_[below - 1].ptr(), stack_[i].ptr()) != 0) {
        throw py::error_already_set();
      }
    }
    stack_.resize(below);
  }

  void putFrom(size_t first, size_t below) {
    if (below == 0 || !stack_[below - 1] ||
        !PyDict_CheckExact(stack_[below - 1].ptr()) ||
        (stack_.size() - first) % 2 != 0) {
      inconsistent();
    }
    for (size_t i = first; i < stack_.size(); i += 2) {
      if (!stack_[i] || !stack_[i + 1]) {
        inconsistent();
      }
      PyObject* const key = stack_[i].ptr();
      if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) {
        throw py::value_error("a key is neither a string nor an integer");
      }
      if (PyDict_SetItem(stack_[below - 1].ptr(), key, stack_[i + 1].ptr()) !=
          0) {
        throw py::error_already_set();
      }
    }
    stack_.resize(below);
  }

  // Returns the index of the first of the last `count` values.
  size_t above(size_t count) const {
    if (stack_.size() < count) {
      inconsistent();
    }
    return stack_.size() - count;
  }

  void pushText(uint64_t bytes) {
    const std::string_view text = take(bytes);
    push(owned(PyUnicode_DecodeUTF8(
        text.data(), py::ssize_t(text.size()), "replace")));
  }

  void pushLong(int64_t bytes) {
    if (bytes < 0) {
      throw py::value_error("it is cut off");
    }
    const std::string_view text = take(uint64_t(bytes));
    const py::object type =
        py::reinterpret_borrow<py::object>((PyObject*)&PyLong_Type);
    push(type.attr("from_bytes")(
        py::bytes(text.data(), text.size()),
        "little",
        py::arg("signed") = true));
  }

  void pushDouble() {
    const std::string_view text = take(8);
    uint64_t bits = 0;
    for (const char c : text) {
      bits = bits << 8 | static_cast<unsigned char>(c);
    }
    push(owned(PyFloat_FromDouble(std::bit_cast<double>(bits))));
  }

  // In most pickles, the memo's indices count up. Other indices are kept in a
  // map, so that a large index does not need a large vector.
  void remember(uint64_t index) {
    const py::object value = top();
    if (index > memo_.size() + kMostSkipped) {
      others_[index] = value;
      return;
    }
    if (index >= memo_.size()) {
      memo_.resize(index + 1);
    }
    remembered_ += memo_[index].has_value() ? 0 : 1;
    memo_[index] = value;
    if (!others_.empty()) {
      others_.erase(index);
    }
  }

  void recall(uint64_t index) {
    if (index < memo_.size() && memo_[index].has_value()) {
      push(*memo_[index]);
      return;
    }
    const auto found = others_.find(index);
    if (found == others_.end()) {
      inconsistent();
    }
    push(found->second);
  }

  // Runs one instruction. Returns false at the end of the pickle.
  bool step(uint8_t code) {
    switch (code) {
      case '.':
        return false;
      case '(':
        push(py::object());
        break;
      case 'N':
        push(py::none());
        break;
      case 0x88:
        push(py::bool_(true));
        break;
      case 0x89:
        push(py::bool_(false));
        break;
      case '}':
        push(py::dict());
        break;
      case ']':
        push(py::list());
        break;
      case ')':
        push(py::tuple());
        break;
      case 'J':
        push(owned(PyLong_FromLong(number<int32_t>())));
        break;
      case 'K':
        push(owned(PyLong_FromLong(number<uint8_t>())));
        break;
      case 'M':
        push(owned(PyLong_FromLong(number<uint16_t>())));
        break;
      case 0x8A:
        pushLong(number<uint8_t>());
        break;
      case 0x8B:
        pushLong(number<int32_t>());
        break;
      case 'G':
        pushDouble();
        break;
      case 'X':
        pushText(number<uint32_t>());
        break;
      case 0x8C:
        pushText(number<uint8_t>());
        break;
      case 0x8D:
        pushText(number<uint64_t>());
        break;
      case 't': {
        const size_t first = marked();
        py::tuple made = tupleFrom(first);
        stack_.back() = std::move(made); // replaces the mark
        break;
      }
      case 'l': {
        const size_t first = marked();
        stack_[first - 1] = py::list();
        appendFrom(first, first);
        break;
      }
      case 'h':
        recall(number<uint8_t>());
        break;
      case 'j':
        recall(number<uint32_t>());
        break;
      case 0x80:
        take(1);
        break;
      case 0x95:
        take(8);
        break;
      case 0x85:
        tupleOf(1);
        break;
      case 0x86:
        tupleOf(2);
        break;
      case 0x87:
        tupleOf(3);
        break;
      case 'u': {
        const size_t first = marked();
        putFrom(first, first - 1);
        break;
      }
      case 's':
        putFrom(above(2), above(2));
        break;
      case 'e': {
        const size_t first = marked();
        appendFrom(first, first - 1);
        break;
      }
      case 'a':
        appendFrom(above(1), above(1));
        break;
      case 'q':
        remember(number<uint8_t>());
        break;
      case 'r':
        remember(number<uint32_t>());
        break;
      case 0x94:
        remember(remembered_ + others_.size());
        break;
      default: {
        char text[64];
        std::snprintf(
            text,
            sizeof(text),
            "instruction 0x%02x builds more than plain values",
            code);
        throw py::value_error(text);
      }
    }
    return true;
  }

  static constexpr uint64_t kMostSkipped = 1024;

  std::string_view rest_;
  std::vector<py::object> stack_;
  // A memo entry may also be a mark.
  std::vector<std::optional<py::object>> memo_;
  std::unordered_map<uint64_t, py::object> others_;
  uint64_t remembered_ = 0;
};

} // namespace

py::object readPlainPickle(std::string_view data) {
  return Machine(data).run();
}

void bindPickles(py::module_& m) {
  m.def(
      "read_plain_pickle",
      [](const py::bytes& data) { return readPlainPickle(data); },
      "Reads a pickle of plain values. ValueError if it holds anything else.",
      py::arg("data"));
}

} // namespace commprof
