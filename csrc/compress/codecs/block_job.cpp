#include "compress/codecs/block_job.h"

#include "compress/exchange/gather.h"

namespace commprof::compress {

void encodePiece(
    const BlockCodec& codec,
    const Job& job,
    Pieces::Range range,
    std::byte* out) {
  const auto [begin, count] = range;
  if (count == 0) {
    return;
  }
  Bucket part = job.bucket;
  part.gradient += begin;
  part.numel = count;
  float* const residual = job.residual ? job.residual + begin : nullptr;
  const uint32_t max_bits = largestBits(part, residual);
  PieceNote note;
  note.finite = isFinite(max_bits);
  if (note.finite) {
    note.exponent = halfExponent(max_bits);
    codec.encode(part.gradient, residual, count, note.exponent, out);
  }
  putNote(note, out + codec.bytes(count));
}

PieceNote checkPiece(
    const BlockCodec& codec,
    const Channel& channel,
    int rank,
    const std::byte* in,
    size_t count) {
  if (count == 0) {
    return {};
  }
  const auto note = readNote(in + codec.bytes(count));
  if (!note) {
    refusePayload(rank, channel, "a piece's note is none");
  }
  if (note->finite && !codec.valid(in, count)) {
    refusePayload(rank, channel, "a block's scale is negative or not finite");
  }
  return *note;
}

} // namespace commprof::compress
