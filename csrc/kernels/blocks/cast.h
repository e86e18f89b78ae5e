// fp32 to 16 bits and back. Two 16-bit types: binary16, with a scale that is a
// power of two because half of all gradients lie below its normal range, and
// bfloat16, whose range is fp32's.
//
// Arrays may have any alignment and length. Where `residual` is not null, error
// feedback is fused in: what is encoded is x + residual, and afterwards
// residual holds what the encoding lost of it.
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

// bfloat16, to nearest even; denormals kept, NaNs stay NaNs (quiet).
void encodeBfloat16(const float* x, float* residual, uint16_t* out, size_t n);
void decodeBfloat16(const uint16_t* in, float* out, size_t n, float factor);

// out[i] = half(sum over w, in this order, of float(in[w][i]) * factors[w]),
// summed in fp32 and rounded once. Source of the idea: two-phase exchange, as
// in torchft's quantised all-reduce.
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

// The same sums, not rounded.
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
