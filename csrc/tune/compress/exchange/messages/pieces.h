// PieceNote: 4 bytes, little-endian, that a block exchange appends to each
// piece. A note has the piece's scale and reports non-finite values, so that
// the first piece can be sent before the whole bucket is read.
//
// Pieces: the division of a bucket for a block exchange. A bucket consists of
// chunks, each summed by one rank, or of a single chunk, which all ranks sum.
// Every chunk consists of the same number of pieces, which are pipelined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "tune/compress/codecs/block_codec.h"
#include "tune/compress/codecs/half_scale.h"

namespace commprof::compress {

struct PieceNote {
  int exponent = 0; // of 16-bit values, see half_scale.h
  bool finite = true; // if false, the values are meaningless
};

inline constexpr size_t kPieceNoteBytes = 4;

inline void putNote(const PieceNote& note, std::byte* out) {
  const int16_t fields[2] = {int16_t(note.exponent), int16_t(note.finite)};
  std::memcpy(out, fields, kPieceNoteBytes);
}

// Returns nothing if the bytes are not a valid note.
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
    size_t piece_bytes = 0; // desired encoded size
    size_t trailer = 0; // bytes appended to each message
  };
  Pieces(const BlockCodec& codec, size_t n, int chunks, Size size);

  struct Range {
    size_t begin = 0; // in values, like `count`
    size_t count = 0;
  };

  int chunks() const {
    return chunks_;
  }
  int count() const {
    return count_;
  }
  Range range(int chunk, int piece) const;
  // Size of a piece's message, in bytes. 0 if the piece has no values.
  size_t messageBytes(int chunk, int piece) const;
  // Aligned offset of a message in the buffer of all messages. end() is the
  // size of the buffer.
  size_t offset(int chunk, int piece) const;
  size_t end() const {
    return offsets_.back();
  }
  // Size of all messages without trailers.
  size_t payloadBytes() const;

 private:
  size_t blocksBefore(int chunk) const;

  const BlockCodec& codec_;
  size_t n_;
  int chunks_;
  size_t trailer_;
  size_t blocks_;
  int count_;
  std::vector<size_t> offsets_; // [piece][chunk]
};

} // namespace commprof::compress
