#include "base/crc32.h"

#include <array>
#include <cstring>

namespace commprof {

namespace {

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

// Table [k][b]: the checksum of byte b followed by k zero bytes.
CrcTables makeCrcTables() {
  CrcTables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) {
      c = (c & 1) ? 0xedb88320u ^ (c >> 1) : c >> 1;
    }
    tables[0][i] = c;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t c = tables[k - 1][i];
      tables[k][i] = tables[0][c & 0xff] ^ (c >> 8);
    }
  }
  return tables;
}

} // namespace

// Slicing by 8 (Kounavis and Berry, 2005): processes eight bytes per iteration.
// Each of the eight bytes uses the table for its distance from the last one.
uint32_t crc32(const void* data, size_t bytes) noexcept {
  static const CrcTables tables = makeCrcTables();
  uint32_t c = 0xffffffffu;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t eight;
    std::memcpy(&eight, at, 8); // little-endian, as the whole format
    eight ^= c;
    c = 0;
    for (size_t k = 0; k < 8; ++k) {
      c ^= tables[7 - k][(eight >> (8 * k)) & 0xff];
    }
  }
  for (; bytes > 0; ++at, --bytes) {
    c = tables[0][(c ^ *at) & 0xff] ^ (c >> 8);
  }
  return c ^ 0xffffffffu;
}

} // namespace commprof
