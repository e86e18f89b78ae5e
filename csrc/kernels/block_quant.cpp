#include "kernels/block_quant.h"

#include "kernels/block_quant_table.h"
#include "kernels/parallel.h"
#include "kernels/streaming.h"

namespace commprof::kernels {

// A block must not lie in two pieces of the work.
static_assert(kGrain % kInt8Block == 0);
static_assert(kGrain % kInt4Block == 0);

void encodeInt8(
    const float* x,
    float* residual,
    int8_t* out,
    float* scales,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(int8Table);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.encode(x, residual, out, scales, begin, end);
  });
}

void decodeInt8(
    const int8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  const auto& kernels = COMMPROF_PICK(int8Table);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.decode(in, scales, out, factor, streams, begin, end);
  });
}

void reduceInt8(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    int8_t* out,
    float* out_scales,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(int8Table);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.reduce(in, scales, count, factor, out, out_scales, begin, end);
  });
}

void sumInt8(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(int8Table);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.sum(in, scales, count, factor, out, streams, begin, end);
  });
}

void encodeInt4(
    const float* x,
    float* residual,
    uint8_t* out,
    float* scales,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(int4Table);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.encode(x, residual, out, scales, begin, end);
  });
}

void decodeInt4(
    const uint8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  const auto& kernels = COMMPROF_PICK(int4Table);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.decode(in, scales, out, factor, streams, begin, end);
  });
}

void reduceInt4(
    const uint8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    uint8_t* out,
    float* out_scales,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(int4Table);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.reduce(in, scales, count, factor, out, out_scales, begin, end);
  });
}

void sumInt4(
    const uint8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(int4Table);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.sum(in, scales, count, factor, out, streams, begin, end);
  });
}

} // namespace commprof::kernels
