#include "kernels/cast.h"

#include "kernels/cast_table.h"
#include "kernels/parallel.h"
#include "kernels/streaming.h"

namespace commprof::kernels {

void encodeHalf(
    const float* x,
    float* residual,
    uint16_t* out,
    size_t n,
    float scale) {
  const auto& kernels = COMMPROF_PICK(castTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.encodeHalf(x, residual, out, scale, begin, end);
  });
}

void decodeHalf(const uint16_t* in, float* out, size_t n, float factor) {
  const auto& kernels = COMMPROF_PICK(castTable);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.decodeHalf(in, out, factor, streams, begin, end);
  });
}

void encodeBfloat16(const float* x, float* residual, uint16_t* out, size_t n) {
  const auto& kernels = COMMPROF_PICK(castTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.encodeBfloat16(x, residual, out, begin, end);
  });
}

void decodeBfloat16(const uint16_t* in, float* out, size_t n, float factor) {
  const auto& kernels = COMMPROF_PICK(castTable);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.decodeBfloat16(in, out, factor, streams, begin, end);
  });
}

void reduceHalf(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(castTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.reduceHalf(in, factors, count, out, begin, end);
  });
}

void reduceBfloat16(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(castTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.reduceBfloat16(in, factors, count, out, begin, end);
  });
}

void sumHalf(
    const uint16_t* const* in,
    const float* factors,
    int count,
    float* out,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(castTable);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.sumHalf(in, factors, count, out, streams, begin, end);
  });
}

void sumBfloat16(
    const uint16_t* const* in,
    const float* factors,
    int count,
    float* out,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(castTable);
  const bool streams = goPastCaches(out, n);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.sumBfloat16(in, factors, count, out, streams, begin, end);
  });
}

} // namespace commprof::kernels
