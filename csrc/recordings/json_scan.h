// Finds the positions of values in JSON text. Accepts only what Python's json
// module accepts. Returns each value as a piece of the text. Strings keep their
// quotes and escapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace commprof::recordings {

class JsonScan {
 public:
  explicit JsonScan(std::string_view text, size_t at = 0)
      : begin_(text.data()), at_(begin_ + at), end_(begin_ + text.size()) {}

  size_t place() const {
    return size_t(at_ - begin_);
  }

  bool atEnd() const {
    return at_ == end_;
  }

  char next() const {
    return at_ == end_ ? '\0' : *at_;
  }

  void skipSpace() {
    while (at_ != end_ &&
           (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) {
      ++at_;
    }
  }

  bool take(char c) {
    skipSpace();
    if (at_ == end_ || *at_ != c) {
      return false;
    }
    ++at_;
    return true;
  }

  // Returns the next value. Empty if the value is malformed, is cut off or is
  // nested too deeply.
  std::string_view value(int depth = 0) {
    skipSpace();
    const char* const begin = at_;
    if (!skipValue(depth)) {
      return {};
    }
    return {begin, size_t(at_ - begin)};
  }

  // Calls `field(key)` for each key of an object, without quotes. `field` must
  // scan the value; it returns false to stop. Returns true if the whole object
  // was scanned. A key with an escape stops the scan.
  template <class Field>
  bool object(Field field) {
    if (!take('{')) {
      return false;
    }
    if (take('}')) {
      return true;
    }
    while (true) {
      skipSpace();
      const char* const begin = at_;
      bool isEscaped = false;
      if (!skipString(isEscaped) || isEscaped) {
        return false;
      }
      const std::string_view key(begin + 1, size_t(at_ - begin) - 2);
      if (!take(':') || !field(key)) {
        return false;
      }
      if (take('}')) {
        return true;
      }
      if (!take(',')) {
        return false;
      }
    }
  }

 private:
  static constexpr int kDeepest = 64;

  bool skipValue(int depth) {
    if (at_ == end_ || depth > kDeepest) {
      return false;
    }
    bool isEscaped = false;
    switch (*at_) {
      case '"':
        return skipString(isEscaped);
      case '{':
        return skipObject(depth);
      case '[':
        return skipArray(depth);
      case 't':
        return skipWord("true");
      case 'f':
        return skipWord("false");
      case 'n':
        return skipWord("null");
      default:
        return skipNumber(); // NaN and infinities are left to Python
    }
  }

  bool skipObject(int depth) {
    ++at_;
    if (take('}')) {
      return true;
    }
    do {
      skipSpace();
      bool isEscaped = false;
      if (!skipString(isEscaped) || !take(':')) {
        return false;
      }
      skipSpace();
      if (!skipValue(depth + 1)) {
        return false;
      }
    } while (take(','));
    return take('}');
  }

  bool skipArray(int depth) {
    ++at_;
    if (take(']')) {
      return true;
    }
    do {
      skipSpace();
      if (!skipValue(depth + 1)) {
        return false;
      }
    } while (take(','));
    return take(']');
  }

  bool skipWord(std::string_view word) {
    if (size_t(end_ - at_) < word.size() ||
        std::string_view(at_, word.size()) != word) {
      return false;
    }
    at_ += word.size();
    return true;
  }

  static bool isDigit(char c) {
    return c >= '0' && c <= '9';
  }

  bool skipDigits() {
    const char* const begin = at_;
    while (at_ != end_ && isDigit(*at_)) {
      ++at_;
    }
    return at_ != begin;
  }

  bool skipNumber() {
    if (*at_ == '-') {
      ++at_;
    }
    if (at_ != end_ && *at_ == '0') {
      ++at_;
    } else if (!skipDigits()) {
      return false;
    }
    if (at_ != end_ && *at_ == '.') {
      ++at_;
      if (!skipDigits()) {
        return false;
      }
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) {
        ++at_;
      }
      if (!skipDigits()) {
        return false;
      }
    }
    // A number at the end of the text may be cut off.
    return at_ != end_;
  }

  // Tests eight characters together. If true, none is a quote, a backslash or a
  // control character. May be false without such a character.
  static bool arePlain(const char* text) {
    constexpr uint64_t kOnes = 0x0101010101010101;
    constexpr uint64_t kTops = 0x8080808080808080;
    uint64_t some;
    std::memcpy(&some, text, sizeof(some));
    const uint64_t quotes = some ^ (kOnes * '"');
    const uint64_t slashes = some ^ (kOnes * '\\');
    const uint64_t unusual = (quotes - kOnes) | (slashes - kOnes) |
        (some - kOnes * ' ') | some; // last term: non-ASCII characters
    return (unusual & kTops) == 0;
  }

  bool skipString(bool& isEscaped) {
    if (at_ == end_ || *at_ != '"') {
      return false;
    }
    ++at_;
    while (true) {
      while (end_ - at_ >= 8 && arePlain(at_)) {
        at_ += 8;
      }
      // One of the next eight characters may be special, or fewer than eight
      // are left.
      const char* const until = end_ - at_ > 8 ? at_ + 8 : end_;
      while (at_ != until) {
        const char c = *at_;
        if (c == '"') {
          ++at_;
          return true;
        }
        if (c == '\\') {
          isEscaped = true;
          if (!skipEscape()) {
            return false;
          }
          break;
        }
        if (static_cast<unsigned char>(c) < ' ') {
          return false;
        }
        ++at_;
      }
      if (at_ == end_) {
        return false;
      }
    }
  }

  bool skipEscape() {
    if (end_ - at_ < 2) {
      return false;
    }
    const char kind = at_[1];
    if (kind != 'u') {
      at_ += 2;
      return kind != '\0' && std::strchr("\"\\/bfnrt", kind) != nullptr;
    }
    if (end_ - at_ < 6) {
      return false;
    }
    for (int i = 2; i < 6; ++i) {
      const char c = at_[i];
      if (!isDigit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) {
        return false;
      }
    }
    at_ += 6;
    return true;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
};

} // namespace commprof::recordings
