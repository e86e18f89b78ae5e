// What an exchange of blocks says of each piece, behind its values: 4 bytes,
// little-endian. So nobody has to read a bucket to the end before its first
// piece is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "compress/codecs/half_scale.h"

namespace commprof::compress {

struct PieceNote {
  int exponent = 0; // of 16-bit values, see half_scale.h
  bool finite = true; // if not, the values mean nothing
};

inline constexpr size_t kPieceNoteBytes = 4;

inline void putNote(const PieceNote& note, std::byte* out) {
  const int16_t fields[2] = {int16_t(note.exponent), int16_t(note.finite)};
  std::memcpy(out, fields, kPieceNoteBytes);
}

// Nothing where the bytes are no note.
inline std::optional<PieceNote> readNote(const std::byte* in) {
  int16_t fields[2];
  std::memcpy(fields, in, kPieceNoteBytes);
  const auto [exponent, finite] = fields;
  if (exponent < kMinHalfExponent || exponent > kMaxHalfExponent ||
      (finite != 0 && finite != 1)) {
    return std::nullopt;
  }
  return PieceNote{exponent, finite == 1};
}

} // namespace commprof::compress
