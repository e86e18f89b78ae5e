#include "tune/kernels/blocks/cast.h"

#include "tune/kernels/blocks/block_tables.h"
#include "tune/kernels/parallel.h"

namespace commprof::kernels {

void encodeHalf(
    const float* x,
    float* residual,
    uint16_t* out,
    size_t n,
    float scale) {
  runDense(n, COMMPROF_PICK(castTable).encodeHalf, x, residual, out, scale);
}

void decodeHalf(const uint16_t* in, float* out, size_t n, float factor) {
  runDense(
      n,
      COMMPROF_PICK(castTable).decodeHalf,
      in,
      out,
      factor,
      goPastCaches(out, n));
}

void encodeBfloat16(const float* x, float* residual, uint16_t* out, size_t n) {
  runDense(n, COMMPROF_PICK(castTable).encodeBfloat16, x, residual, out);
}

void decodeBfloat16(const uint16_t* in, float* out, size_t n, float factor) {
  runDense(
      n,
      COMMPROF_PICK(castTable).decodeBfloat16,
      in,
      out,
      factor,
      goPastCaches(out, n));
}

void reduceHalf(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n) {
  runDense(n, COMMPROF_PICK(castTable).reduceHalf, in, factors, count, out);
}

void reduceBfloat16(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n) {
  runDense(n, COMMPROF_PICK(castTable).reduceBfloat16, in, factors, count, out);
}

void sumHalf(
    const uint16_t* const* in,
    const float* factors,
    int count,
    float* out,
    size_t n) {
  runDense(
      n,
      COMMPROF_PICK(castTable).sumHalf,
      in,
      factors,
      count,
      out,
      goPastCaches(out, n));
}

void sumBfloat16(
    const uint16_t* const* in,
    const float* factors,
    int count,
    float* out,
    size_t n) {
  runDense(
      n,
      COMMPROF_PICK(castTable).sumBfloat16,
      in,
      factors,
      count,
      out,
      goPastCaches(out, n));
}

} // namespace commprof::kernels
