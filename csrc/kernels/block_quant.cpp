#include "kernels/block_quant.h"

#include "kernels/block_quant_table.h"

namespace commprof::kernels {

void encodeInt8(
    const float* x,
    float* residual,
    int8_t* out,
    float* scales,
    size_t n) {
  COMMPROF_PICK(int8Table).encode(x, residual, out, scales, 0, n);
}

void decodeInt8(
    const int8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  COMMPROF_PICK(int8Table).decode(in, scales, out, factor, 0, n);
}

void reduceInt8(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    int8_t* out,
    float* out_scales,
    size_t n) {
  COMMPROF_PICK(int8Table).reduce(
      in, scales, count, factor, out, out_scales, 0, n);
}

void encodeInt4(
    const float* x,
    float* residual,
    uint8_t* out,
    float* scales,
    size_t n) {
  COMMPROF_PICK(int4Table).encode(x, residual, out, scales, 0, n);
}

void decodeInt4(
    const uint8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  COMMPROF_PICK(int4Table).decode(in, scales, out, factor, 0, n);
}

void reduceInt4(
    const uint8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    uint8_t* out,
    float* out_scales,
    size_t n) {
  COMMPROF_PICK(int4Table).reduce(
      in, scales, count, factor, out, out_scales, 0, n);
}

} // namespace commprof::kernels
