// Wire format of a bucket's chosen values. The bucket's places (indices) are
// divided into parts of 65,536. Three arrays follow one another:
//
//   u32 for each part: number of chosen values in the part
//   u16 for each chosen value: offset in its part, strictly ascending in a part
//   binary16 for each chosen value: value * scale
//
// Little-endian, without padding, at an even address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

inline constexpr size_t kSparsePart = 65536; // places in a part

constexpr size_t sparseParts(size_t n) {
  return (n + kSparsePart - 1) / kSparsePart;
}
constexpr size_t sparseBytes(size_t n, size_t k) {
  return sparseParts(n) * 4 + k * 4;
}

// Encodes k values. Their indices are ascending and below n. If residual is not
// null, residual[index] becomes the rounding error of the value.
void encodeSparse(
    const int32_t* indices,
    const float* values,
    size_t k,
    size_t n,
    float scale,
    float* residual,
    uint8_t* out);

// Returns whether `in`, sparseBytes(n, k) bytes of any content, is a valid
// encoding.
bool validSparse(const uint8_t* in, size_t n, size_t k);

// dense[index] += value * factor. Does not validate: call validSparse() first.
void addSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    float factor,
    float* dense);

// Consecutive parts of an encoding.
struct SparseRange {
  size_t first_part = 0;
  size_t parts = 0;
  size_t before = 0; // number of values in earlier parts
  size_t count = 0; // number of values in these parts
};
// Writes the range as an encoding of its own, of 4 * (parts + count) bytes. The
// first place of the range becomes place 0.
void cutSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    const SparseRange& range,
    uint8_t* out);

} // namespace commprof::kernels
