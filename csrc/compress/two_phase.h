// Each rank sums one chunk of the bucket: all send it theirs, encoded; it sums
// in fp32 in the order of ranks, rounds once, and sends the result to all. Two
// roundings in all, where a ring of 16-bit values has one per rank; and what
// everyone decodes, the owner of the chunk too, is the same bytes.
//
// Without a residual, which would have to stay as it was, nobody looks first
// for values that are not finite: a piece that has some says so in its note
// (piece_note.h), and so does what its owner makes of it.
#pragma once

#include <memory>

#include "compress/block_codec.h"
#include "compress/pieces.h"
#include "compress/scheme.h"
#include "compress/scratch.h"

namespace commprof::compress {

class TwoPhase : public Scheme {
 public:
  TwoPhase(std::unique_ptr<BlockCodec> codec, size_t piece_bytes);

  Look look(const Draft& draft) override;
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

 private:
  friend class TwoPhaseRun;
  std::unique_ptr<BlockCodec> codec_;
  size_t piece_bytes_;
  Scratch encoded_; // all chunks, this rank's gradients
  Scratch received_; // this rank's chunk, from everyone
  Scratch results_; // all chunks, means
};

} // namespace commprof::compress
