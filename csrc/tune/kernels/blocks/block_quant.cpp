#include "tune/kernels/blocks/block_quant.h"

#include "tune/kernels/blocks/block_tables.h"
#include "tune/kernels/parallel.h"

namespace commprof::kernels {

// No block may span two pieces of work.
static_assert(kGrain % kInt8Block == 0);
static_assert(kGrain % kInt4Block == 0);

void encodeInt8(
    const float* x,
    float* residual,
    int8_t* out,
    float* scales,
    size_t n) {
  runDense(n, COMMPROF_PICK(int8Table).encode, x, residual, out, scales);
}

void decodeInt8(
    const int8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  runDense(
      n,
      COMMPROF_PICK(int8Table).decode,
      in,
      scales,
      out,
      factor,
      goPastCaches(out, n));
}

void reduceInt8(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    int8_t* out,
    float* out_scales,
    size_t n) {
  runDense(
      n,
      COMMPROF_PICK(int8Table).reduce,
      in,
      scales,
      count,
      factor,
      out,
      out_scales);
}

void sumInt8(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t n) {
  runDense(
      n,
      COMMPROF_PICK(int8Table).sum,
      in,
      scales,
      count,
      factor,
      out,
      goPastCaches(out, n));
}

void encodeInt4(
    const float* x,
    float* residual,
    uint8_t* out,
    float* scales,
    size_t n) {
  runDense(n, COMMPROF_PICK(int4Table).encode, x, residual, out, scales);
}

void decodeInt4(
    const uint8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  runDense(
      n,
      COMMPROF_PICK(int4Table).decode,
      in,
      scales,
      out,
      factor,
      goPastCaches(out, n));
}

void reduceInt4(
    const uint8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    uint8_t* out,
    float* out_scales,
    size_t n) {
  runDense(
      n,
      COMMPROF_PICK(int4Table).reduce,
      in,
      scales,
      count,
      factor,
      out,
      out_scales);
}

void sumInt4(
    const uint8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t n) {
  runDense(
      n,
      COMMPROF_PICK(int4Table).sum,
      in,
      scales,
      count,
      factor,
      out,
      goPastCaches(out, n));
}

} // namespace commprof::kernels
