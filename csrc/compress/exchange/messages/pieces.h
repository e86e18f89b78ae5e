// What an exchange of blocks says of each piece, behind its values: 4 bytes,
// little-endian. So nobody has to read a bucket to the end before its first
// piece is sent.
//
// How an exchange of blocks divides a bucket: into chunks, of which each rank
// sums one or everyone all (then it is one chunk), and each chunk into equally
// many pieces that are pipelined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "compress/codecs/block_codec.h"
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

class Pieces {
 public:
  struct Size {
    size_t piece_bytes = 0; // wanted, encoded
    size_t trailer = 0; // by which messages are longer than what they carry
  };
  Pieces(const BlockCodec& codec, size_t n, int chunks, Size size);

  struct Range {
    size_t begin = 0; // values
    size_t count = 0;
  };

  int chunks() const {
    return chunks_;
  }
  int count() const {
    return count_;
  }
  Range range(int chunk, int piece) const;
  // Of the piece's message, 0 if it carries nothing.
  size_t messageBytes(int chunk, int piece) const;
  // Where it lies in a buffer that holds all messages, aligned; and the end.
  size_t offset(int chunk, int piece) const;
  size_t end() const {
    return offsets_.back();
  }
  // Without trailers.
  size_t payloadBytes() const;

 private:
  size_t blocksBefore(int chunk) const;

  const BlockCodec& codec_;
  size_t n_;
  int chunks_;
  size_t trailer_;
  size_t blocks_;
  int count_;
  std::vector<size_t> offsets_; // by piece, then chunk
};

} // namespace commprof::compress
