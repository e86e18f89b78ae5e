// Conversion between fp32 and two 16-bit types: binary16, with a power-of-two
// scale because half of all gradients lie below its normal range, and bfloat16,
// which has fp32's range.
//
// Arrays may have any alignment and length. If `residual` is not null, error
// feedback is fused in: x + residual is encoded, and residual then holds the
// rounding error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

// out = half((x + residual) * scale), to nearest even.
void encodeHalf(
    const float* x,
    float* residual,
    uint16_t* out,
    size_t n,
    float scale);
// out = float(in) * factor
void decodeHalf(const uint16_t* in, float* out, size_t n, float factor);

// Rounds to bfloat16, to nearest even; keeps denormals, makes NaNs quiet.
void encodeBfloat16(const float* x, float* residual, uint16_t* out, size_t n);
void decodeBfloat16(const uint16_t* in, float* out, size_t n, float factor);

// out[i] = half(sum over w, in this order, of float(in[w][i]) * factors[w]),
// summed in fp32 and rounded once. For the two-phase exchange, whose idea comes
// from torchft's quantised all-reduce.
void reduceHalf(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n);
void reduceBfloat16(
    const uint16_t* const* in,
    const float* factors,
    int count,
    uint16_t* out,
    size_t n);

// Computes the same sums without rounding them.
void sumHalf(
    const uint16_t* const* in,
    const float* factors,
    int count,
    float* out,
    size_t n);
void sumBfloat16(
    const uint16_t* const* in,
    const float* factors,
    int count,
    float* out,
    size_t n);

} // namespace commprof::kernels
