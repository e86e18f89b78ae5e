#include "kernels/cast.h"

#include "kernels/cast_table.h"

namespace commprof::kernels {

void encodeHalf(
    const float* x,
    float* residual,
    uint16_t* out,
    size_t n,
    float scale) {
  COMMPROF_PICK(castTable).encodeHalf(x, residual, out, scale, 0, n);
}

void decodeHalf(const uint16_t* in, float* out, size_t n, float factor) {
  COMMPROF_PICK(castTable).decodeHalf(in, out, factor, 0, n);
}

void encodeBfloat16(const float* x, float* residual, uint16_t* out, size_t n) {
  COMMPROF_PICK(castTable).encodeBfloat16(x, residual, out, 0, n);
}

void decodeBfloat16(const uint16_t* in, float* out, size_t n, float factor) {
  COMMPROF_PICK(castTable).decodeBfloat16(in, out, factor, 0, n);
}

void reduceHalf(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n) {
  COMMPROF_PICK(castTable).reduceHalf(in, factors, count, out, 0, n);
}

void reduceBfloat16(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n) {
  COMMPROF_PICK(castTable).reduceBfloat16(in, factors, count, out, 0, n);
}

} // namespace commprof::kernels
