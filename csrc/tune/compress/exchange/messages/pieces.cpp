#include "tune/compress/exchange/messages/pieces.h"

#include <algorithm>

#include "tune/compress/scratch.h"

namespace commprof::compress {

Pieces::Pieces(const BlockCodec& codec, size_t n, int chunks, Size size)
    : codec_(codec),
      n_(n),
      chunks_(chunks),
      trailer_(size.trailer),
      blocks_((n + codec.block() - 1) / codec.block()) {
  const size_t chunk_bytes = codec.bytes(n) / size_t(chunks);
  count_ = int(std::max<size_t>(1, chunk_bytes / size.piece_bytes));
  offsets_.reserve(size_t(count_) * size_t(chunks) + 1);
  offsets_.push_back(0);
  for (int piece = 0; piece < count_; ++piece) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      offsets_.push_back(offsets_.back() + aligned(messageBytes(chunk, piece)));
    }
  }
}

size_t Pieces::blocksBefore(int chunk) const {
  return blocks_ * size_t(chunk) / size_t(chunks_);
}

Pieces::Range Pieces::range(int chunk, int piece) const {
  const size_t first = blocksBefore(chunk);
  const size_t blocks = blocksBefore(chunk + 1) - first;
  const auto bound = [&](int at) {
    const size_t before = first + blocks * size_t(at) / size_t(count_);
    return std::min(before * codec_.block(), n_);
  };
  return {bound(piece), bound(piece + 1) - bound(piece)};
}

size_t Pieces::messageBytes(int chunk, int piece) const {
  const size_t count = range(chunk, piece).count;
  return count == 0 ? 0 : codec_.bytes(count) + kPieceNoteBytes + trailer_;
}

size_t Pieces::offset(int chunk, int piece) const {
  return offsets_[size_t(piece) * size_t(chunks_) + size_t(chunk)];
}

size_t Pieces::payloadBytes() const {
  size_t bytes = 0;
  for (int piece = 0; piece < count_; ++piece) {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const size_t length = messageBytes(chunk, piece);
      bytes += length == 0 ? 0 : length - trailer_;
    }
  }
  return bytes;
}

} // namespace commprof::compress
