// Quantisation to integers with one scale per block: max|x| / 7 over 64 values
// (int4), or max|x| / 127 over 128 values (int8). int8's scale is rounded to
// bfloat16, so that it takes 16 bits. This changes max|x| / scale by less than
// 0.25, so the largest integer is still 127. A block has scale 0 and integers 0
// if its values are all zero or its scale would be denormal. The last block may
// be short. Inputs must be finite: check with maxAbsBits() (compare.h) first.
//
// int4: byte j of a block holds value j in its low four bits and value j + 32
// in its high four bits, in two's complement. A short last block is padded with
// zeros.
//
// If `residual` is not null, x + residual is encoded, and residual then holds
// the rounding error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

inline constexpr size_t kInt8Block = 128;
inline constexpr size_t kInt4Block = 64;

constexpr size_t int8Blocks(size_t n) {
  return (n + kInt8Block - 1) / kInt8Block;
}
constexpr size_t int4Blocks(size_t n) {
  return (n + kInt4Block - 1) / kInt4Block;
}
constexpr size_t int4Bytes(size_t n) {
  return int4Blocks(n) * (kInt4Block / 2);
}

void encodeInt8(
    const float* x,
    float* residual,
    int8_t* out,
    float* scales,
    size_t n);
// out = in * scale of the block * factor
void decodeInt8(
    const int8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor);
// Sums `count` encodings in fp32 in the given order, multiplies by factor, and
// encodes the sum, with one rounding. Negative or non-finite scales count as 0.
void reduceInt8(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    int8_t* out,
    float* out_scales,
    size_t n);
// Like reduceInt8(), but does not encode the sum.
void sumInt8(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t n);

void encodeInt4(
    const float* x,
    float* residual,
    uint8_t* out,
    float* scales,
    size_t n);
void decodeInt4(
    const uint8_t* in,
    const float* scales,
    float* out,
    size_t n,
    float factor);
void reduceInt4(
    const uint8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    uint8_t* out,
    float* out_scales,
    size_t n);
void sumInt4(
    const uint8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t n);

} // namespace commprof::kernels
