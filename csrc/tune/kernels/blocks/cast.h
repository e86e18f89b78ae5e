// Conversion between fp32 and two 16-bit types: binary16 and bfloat16. Values
// are scaled for binary16, because half of all gradients lie below its normal
// range.
//
// Arrays may have any alignment and length. If `residual` is not null, x +
// residual is encoded, and residual then holds the rounding error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

// out = half((x + residual) * scale), rounded to nearest even.
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

// out[i] = half(sum over w of float(in[w][i]) * factors[w]). Sums in fp32 in
// the order of w, and rounds once. The idea comes from torchft's quantised
// all-reduce.
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

// Like reduceHalf() and reduceBfloat16(), but without rounding.
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
