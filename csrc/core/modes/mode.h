// Modes of capture: keep nothing, a summary of bounded size, or every record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace commprof {

// X(enumerator, name)
#define COMMPROF_MODES(X)  \
  X(Off, "off")            \
  X(AlwaysOn, "always-on") \
  X(Full, "full")

enum class Mode : uint8_t {
#define X(name, text) k##name,
  COMMPROF_MODES(X)
#undef X
};

inline const char* modeName(Mode mode) noexcept {
  switch (mode) {
#define X(name, text) \
  case Mode::k##name: \
    return text;
    COMMPROF_MODES(X)
#undef X
  }
  return "";
}

inline std::optional<Mode> modeNamed(const std::string& name) {
#define X(enumerator, text)     \
  if (name == text) {           \
    return Mode::k##enumerator; \
  }
  COMMPROF_MODES(X)
#undef X
  return std::nullopt;
}

// The mode after `mode`, to which a signal switches: off -> always-on -> full
// -> off.
inline Mode nextMode(Mode mode) noexcept {
  return mode == Mode::kFull ? Mode::kOff : Mode(uint8_t(mode) + 1);
}

} // namespace commprof
