// One gradient bucket of a compressor, and the report on its exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/record.h"

namespace commprof::compress {

// The position of one parameter in a bucket. DDP rebuilds buckets and reuses
// their indices and addresses, so all state is keyed by parameter.
struct Slot {
  uint32_t parameter = 0; // index in the model, the same on all ranks
  size_t offset = 0; // within the bucket, in values
  size_t numel = 0;
  uint32_t rows = 0; // first dimension
  uint32_t cols = 0; // product of the other dimensions; 0: a vector or scalar
};

struct Bucket {
  float* gradient = nullptr; // in: local gradients; out: their mean over ranks
  size_t numel = 0;
  std::span<const Slot> slots; // sorted by offset
  uint64_t signature = 0;
  uint64_t step = 0; // index of the synchronised step of this model
  uint32_t index = 0;
};

// FNV-1a hash of parameters, offsets and shapes. If the hash differs between
// ranks, the ranks do not exchange the same bucket.
uint64_t signatureOf(std::span<const Slot> slots);

// Throws std::invalid_argument if slots overlap or exceed the bucket, if a
// matrix does not fit its slot, or if the bucket has 2^31 values or more.
void checkBucket(const Bucket& bucket);

struct Span {
  Stage stage = Stage::kEncode;
  uint64_t begin_ns = 0; // CLOCK_MONOTONIC
  uint64_t end_ns = 0;
};

struct BucketReport {
  // Sorted by begin time. Spans of the exchange may overlap each other and
  // spans of other stages.
  std::vector<Span> spans;
  // Size in bytes of this rank's encoded gradients and of its header (see
  // Handshake).
  uint64_t payload_bytes = 0;
  // Bytes that this rank sent to other ranks. An all-reduce counts as 2 (W - 1)
  // / W times its bytes, as in a ring of W ranks.
  uint64_t wire_bytes = 0;
  // True if values of any rank were found to be non-finite or above 2^80. The
  // bucket is then NaN on all ranks. See Compressor::run().
  bool nonfinite = false;

  // Quality of this rank's own encoding. Roundings of the ranks' sum do not
  // count. Measured only for lossy codes, in the steps that
  // Options::measure_every selects. False: not measured.
  bool has_quality = false;
  // ||wanted - sent|| / ||wanted||, where wanted = gradient + residual, and
  // sent = decode(encode(wanted)).
  double relative_error = 0;
  double cosine = 0; // of the angle between wanted and sent
  // ||residual|| / ||gradient|| after run(); 0 without error feedback.
  double residual_ratio = 0;
  uint64_t zeroed = 0; // number of nonzero values sent as zero
  // Number of values that were sent as less than half of their size, but not as
  // zero: they exceed the range of the code, or PowerSGD approximates them.
  uint64_t saturated = 0;
};

} // namespace commprof::compress
