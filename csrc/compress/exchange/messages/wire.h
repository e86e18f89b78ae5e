// What ranks tell each other about a bucket before they exchange it: 32 bytes,
// little-endian, in which all that must be the same on all ranks is compared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/scheme_table.h"

namespace commprof::compress {

// As in Options::scheme; "unknown" for a number that is none.
const char* schemeName(SchemeCode code);

struct Header {
  SchemeCode scheme = SchemeCode::kNone;
  bool nonfinite = false; // this rank's gradients are: nothing else follows
  int8_t exponent = 0; // 16-bit values are x * 2^exponent
  uint16_t options = 0; // hash of all options and the seed
  uint32_t n = 0; // values in the bucket
  uint32_t k = 0; // values, blocks or rank sent; 0 where the scheme has none
  uint64_t signature = 0; // of the slots
  uint32_t step = 0; // low 32 bits
  uint16_t index = 0; // low 16 bits
};

inline constexpr size_t kHeaderBytes = 32;
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes pack(const Header& header);

// Throws PayloadError where the bytes are no header or were damaged, and
// DisagreementError for another version. `rank` sent it, for bucket `index`.
Header unpack(std::span<const std::byte> bytes, int rank, uint32_t index);

// Throws DisagreementError for the first field that differs.
void checkAgreement(
    const Header& mine,
    int my_rank,
    const Header& theirs,
    int their_rank);

} // namespace commprof::compress
