// Builds text from values, without streams: streams crash if this module and
// torch are linked with different versions of the C++ library.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace commprof {

inline void append(std::string& text, std::string_view part) {
  text += part;
}
inline void append(std::string& text, std::integral auto part) {
  text += std::to_string(part);
}

// Joins its arguments to one string; whole numbers are written in decimal.
template <class... Parts>
std::string textOf(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

} // namespace commprof
