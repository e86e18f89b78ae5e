// One gradient bucket on its way through a compressor, and what came of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace commprof::compress {

// One parameter's place in a bucket. Buckets are rebuilt, and their indices and
// addresses used again, so state belongs to parameters and to nothing else.
struct Slot {
  uint32_t parameter = 0; // number in the model, the same on all ranks
  size_t offset = 0; // in the bucket, in values
  size_t numel = 0;
  uint32_t rows = 0; // as a matrix: first dimension x all others
  uint32_t cols = 0; // 0: a vector or scalar, not for low-rank schemes
};

struct Bucket {
  float* gradient =
      nullptr; // local gradients; afterwards their mean over ranks
  size_t numel = 0;
  std::span<const Slot> slots; // in order of offset
  uint64_t signature = 0; // of the slots, see signatureOf()
  uint64_t step = 0; // synchronised steps of this model so far
  uint32_t index = 0; // in this step
};

// FNV-1a over parameters, offsets and shapes: equal on all ranks or they
// disagree.
uint64_t signatureOf(std::span<const Slot> slots);

// Throws std::invalid_argument where slots overlap or leave the bucket, a
// matrix is not its slot's size, or the bucket has 2^31 values or more.
void checkBucket(const Bucket& bucket);

enum class Stage : uint8_t { kEncode, kExchange, kReduce, kDecode };

struct Span {
  Stage stage = Stage::kEncode;
  uint64_t begin_ns = 0; // CLOCK_MONOTONIC
  uint64_t end_ns = 0;
};

struct BucketReport {
  // In order of begin; pieces of one stage follow each other, exchange overlaps
  // the rest where pieces are pipelined.
  std::vector<Span> spans;
  // This rank's gradients once encoded, and the handshake's header.
  uint64_t payload_bytes = 0;
  // What this rank sent to others for this bucket: all that it handed to
  // Transport::exchange(), and 2 (W - 1) / W of what it had summed, as a ring
  // sends (the backend may do otherwise).
  uint64_t wire_bytes = 0;
  bool nonfinite = false; // some rank had one: the bucket is NaN on all ranks

  // Of this rank's own contribution and its first rounding; measured only
  // where Options::measure_every says so (some more passes) and the code is
  // lossy, else has_quality is false.
  bool has_quality = false;
  double relative_error = 0; // ||wanted - sent|| / ||wanted||, wanted = g + r
  double cosine = 0; // between wanted and sent
  double residual_ratio =
      0; // ||residual|| / ||g|| afterwards; 0 without feedback
  uint64_t zeroed = 0; // values that were not zero and are sent as zero
  // Values that are sent as something less than half their size: beyond the
  // range of their code. Codes that scale by the largest value have none.
  uint64_t saturated = 0;
};

} // namespace commprof::compress
