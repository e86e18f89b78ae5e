// The 64-bit hash FNV-1a (Fowler, Noll, Vo), which is not cryptographic.
#pragma once

#include <cstdint>
#include <string_view>

namespace commprof {

class Fnv1a {
 public:
  void add(uint64_t number) noexcept {
    for (int shift = 0; shift < 64; shift += 8) {
      addByte(uint8_t(number >> shift));
    }
  }
  void add(std::string_view text) noexcept {
    for (const char c : text) {
      addByte(uint8_t(c));
    }
  }
  uint64_t value() const noexcept {
    return value_;
  }

 private:
  void addByte(uint8_t byte) noexcept {
    value_ = (value_ ^ byte) * 0x100000001b3ull;
  }
  uint64_t value_ = 0xcbf29ce484222325ull;
};

} // namespace commprof
