#include "reading/alike_objects.h"

#include <pybind11/stl.h>

#include <optional>

namespace py = pybind11;

namespace commprof {

namespace {

// In bytes. Parsed values are kept in memory with their texts, up to this total
// size of the texts. A longer text than kLongestHeldBytes is parsed each time.
constexpr size_t kMostHeldBytes = 4 << 20;
constexpr size_t kLongestHeldBytes = 16 << 10;
constexpr size_t kMostKeys = 1 << 10;
constexpr size_t kMostDigits = 18; // of a number that surely fits in 64 bits

bool isSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool isDigit(char c) {
  return c >= '0' && c <= '9';
}

// Splits the text of a JSON object into the texts of its members. The values
// are not examined: the object is valid if the text of each value is valid.
class Splitter {
 public:
  explicit Splitter(std::string_view text) : text_(text) {}

  // Skips the character `wanted`. Returns false if another character is there.
  bool take(char wanted) {
    skipSpace();
    if (at_ == text_.size() || text_[at_] != wanted) {
      return false;
    }
    ++at_;
    return true;
  }

  bool atEnd() {
    skipSpace();
    return at_ == text_.size();
  }

  // Returns a name without its quotes. Returns nothing for a name with escapes.
  std::optional<std::string_view> name() {
    if (!take('"')) {
      return {};
    }
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\' || isControl(text_[at_])) {
        return {};
      }
      ++at_;
    }
    const auto found = text_.substr(begin, at_ - begin);
    return take('"') ? std::optional(found) : std::nullopt;
  }

  std::optional<std::string_view> value() {
    skipSpace();
    const size_t begin = at_;
    if (at_ == text_.size()) {
      return {};
    }
    const char first = text_[at_];
    const bool isWhole = first == '"'  ? skipString()
        : first == '{' || first == '[' ? skipNested()
                                       : skipScalar();
    return isWhole ? std::optional(text_.substr(begin, at_ - begin))
                   : std::nullopt;
  }

 private:
  // JSON has control characters only as whitespace between tokens. A text with
  // other control characters is not split: the parser might detect one encoding
  // in the whole text, and another one, such as UTF-16, in a part.
  static bool isControl(char c) {
    return static_cast<unsigned char>(c) < ' ';
  }

  void skipSpace() {
    while (at_ < text_.size() && isSpace(text_[at_])) {
      ++at_;
    }
  }

  bool skipString() {
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') {
        ++at_;
        return true;
      }
      if (isControl(text_[at_])) {
        return false;
      }
      at_ += text_[at_] == '\\';
    }
    return false;
  }

  bool skipNested() {
    size_t depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        if (!skipString()) {
          return false;
        }
        continue;
      }
      if (isControl(c) && !isSpace(c)) {
        return false;
      }
      ++at_;
      if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        return true;
      }
    }
    return false;
  }

  bool skipScalar() {
    const size_t begin = at_;
    const auto isInside = [](char c) {
      return isDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
          c == '-' || c == '+' || c == '.';
    };
    while (at_ < text_.size() && isInside(text_[at_])) {
      ++at_;
    }
    return at_ > begin;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Returns the value if the text is a JSON integer of few digits; else nothing.
std::optional<long long> plainInteger(std::string_view text) {
  if (text.empty() || text.size() > kMostDigits ||
      (text[0] == '0' && text.size() > 1)) {
    return {};
  }
  long long value = 0;
  for (const char c : text) {
    if (!isDigit(c)) {
      return {};
    }
    value = 10 * value + (c - '0');
  }
  return value;
}

py::str textOf(std::string_view text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), py::ssize_t(text.size()), "strict");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::str>(decoded);
}

} // namespace

AlikeObjects::AlikeObjects(
    const std::vector<std::string>& integers,
    const std::vector<std::string>& changing,
    Parse parse)
    : integers_(integers.begin(), integers.end()),
      changing_(changing.begin(), changing.end()),
      parse_(std::move(parse)) {}

AlikeObjects::Read AlikeObjects::read(std::string_view text) {
  Splitter members(text);
  py::dict found;
  if (!members.take('{')) {
    return py::none();
  }
  if (!members.take('}')) {
    do {
      const auto name = members.name();
      if (!name || !members.take(':')) {
        return py::none();
      }
      const auto value = members.value();
      if (!value) {
        return py::none();
      }
      const Key key = keyOf(*name);
      const py::object item = valueOf(key, *value);
      if (PyDict_SetItem(found.ptr(), key.name.ptr(), item.ptr()) != 0) {
        throw py::error_already_set();
      }
    } while (members.take(','));
    if (!members.take('}')) {
      return py::none();
    }
  }
  return members.atEnd() ? Read(found) : Read(py::none());
}

AlikeObjects::Key AlikeObjects::keyOf(std::string_view name) {
  place_.assign(name);
  const auto known = keys_.find(place_);
  if (known != keys_.end()) {
    return known->second;
  }
  if (keys_.size() >= kMostKeys) {
    keys_.clear();
  }
  const Key key = {
      textOf(name), integers_.contains(place_), changing_.contains(place_)};
  return keys_.emplace(place_, key).first->second;
}

py::object AlikeObjects::valueOf(const Key& key, std::string_view text) {
  if (key.isInteger) {
    if (const auto number = plainInteger(text)) {
      return py::int_(*number);
    }
  }
  if (key.isChanging || text.size() > kLongestHeldBytes) {
    return parse_(key.name, py::bytes(text.data(), text.size()));
  }
  place_ += '\0'; // `place_` holds the name of the key
  place_ += text;
  const auto known = values_.find(place_);
  if (known != values_.end()) {
    return known->second;
  }
  std::string place = place_; // a copy, because `parse` may read another object
  const py::object value =
      parse_(key.name, py::bytes(text.data(), text.size()));
  if (heldBytes_ + place.size() <= kMostHeldBytes) {
    heldBytes_ += place.size();
    values_.emplace(std::move(place), value);
  }
  return value;
}

void bindAlikeObjects(py::module_& m) {
  py::class_<AlikeObjects>(
      m, "AlikeObjects", "Reads JSON objects; equal values are parsed once.")
      .def(
          py::init<
              const std::vector<std::string>&,
              const std::vector<std::string>&,
              AlikeObjects::Parse>(),
          py::arg("integers"),
          py::arg("changing"),
          py::arg("parse"))
      .def(
          "read",
          [](AlikeObjects& self, const py::bytes& text) {
            return self.read(std::string_view(text));
          },
          "Returns the members of an object; do not change their values. None "
          "for a text that must be parsed as a whole.",
          py::arg("text"));
}

} // namespace commprof
