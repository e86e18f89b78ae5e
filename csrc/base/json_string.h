// Conversion of text to a JSON string.
#pragma once

#include <cstdio>
#include <string>

namespace commprof {

// Returns `text` in quotes and escaped; UTF-8 stays unchanged.
inline std::string jsonString(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

} // namespace commprof
