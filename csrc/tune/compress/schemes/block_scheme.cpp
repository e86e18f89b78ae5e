#include "tune/compress/schemes/block_scheme.h"

#include <vector>

#include "tune/compress/exchange/block_exchange.h"

namespace commprof::compress {

namespace {

// For two ranks, one and two phases send the same number of bytes, but one
// phase rounds each value only once. For more ranks, two phases send fewer
// bytes. forecast/costs/hook_costs.py uses the same rule.
bool inOnePhase(int world) {
  return world <= 2;
}

} // namespace

BlockScheme::BlockScheme(std::unique_ptr<BlockCodec> codec, size_t piece_bytes)
    : codec_(std::move(codec)), piece_bytes_(piece_bytes) {}

Pieces BlockScheme::piecesOf(size_t n, int world, size_t trailer) const {
  const int chunks = inOnePhase(world) ? 1 : world;
  return {*codec_, n, chunks, {piece_bytes_, trailer}};
}

Snapshot BlockScheme::inspect(const Proposal& proposal) {
  return proposal.residual == nullptr ? Snapshot{} : Scheme::inspect(proposal);
}

void BlockScheme::run(Job& job) {
  const int world = job.channel.size();
  const Pieces pieces =
      piecesOf(job.bucket.numel, world, job.channel.trailerBytes());
  if (inOnePhase(world)) {
    runOnePhase(*codec_, pieces, scratch_, job);
  } else {
    runTwoPhases(*codec_, pieces, scratch_, job);
  }
  job.channel.report().payload_bytes += pieces.payloadBytes();
}

void BlockScheme::addSent(
    const Sent& sent,
    std::span<const Slot> /*slots*/,
    float* dense) {
  const Pieces pieces = piecesOf(sent.numel, sent.world, sent.trailer);
  std::vector<float> values;
  for (int piece = 0; piece < pieces.count(); ++piece) {
    for (int chunk = 0; chunk < pieces.chunks(); ++chunk) {
      const auto [begin, count] = pieces.range(chunk, piece);
      if (count == 0) {
        continue;
      }
      const std::byte* const in =
          sent.payload.data() + pieces.offset(chunk, piece);
      const auto note = readNote(in + codec_->bytes(count));
      values.resize(count);
      codec_->decode(in, count, {0, count}, note->exponent, values.data());
      for (size_t i = 0; i < count; ++i) {
        dense[begin + i] += values[i];
      }
    }
  }
}

uint64_t BlockScheme::wireBytes(
    std::span<const Slot> /*slots*/,
    size_t n,
    int world) const {
  const uint64_t bytes = piecesOf(n, world, 0).payloadBytes();
  const auto others = uint64_t(world - 1);
  return inOnePhase(world) ? bytes * others
                           : 2 * bytes * others / uint64_t(world);
}

} // namespace commprof::compress
