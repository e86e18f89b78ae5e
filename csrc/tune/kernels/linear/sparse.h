// Wire format of chosen values. First a u32 for each part of 65,536 places
// (indices in the bucket): the number of chosen values in the part. Then, in 4
// bytes per value, the places of all values, as u16 offsets in their parts,
// ascending; and all values, as binary16 of value * scale. Little-endian, no
// padding, at an even address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

inline constexpr size_t kSparsePart = 65536; // places per count

constexpr size_t sparseParts(size_t n) {
  return (n + kSparsePart - 1) / kSparsePart;
}
constexpr size_t sparseBytes(size_t n, size_t k) {
  return sparseParts(n) * 4 + k * 4;
}

// Encodes values with ascending indices below n. If residual is not null,
// residual[index] becomes value - half(value * scale) / scale.
void encodeSparse(
    const int32_t* indices,
    const float* values,
    size_t k,
    size_t n,
    float scale,
    float* residual,
    uint8_t* out);

// True if `in` (sparseBytes(n, k) long, any content) is a well-formed encoding:
// counts add up to k, and offsets are strictly ascending within each part and
// below n.
bool validSparse(const uint8_t* in, size_t n, size_t k);

// dense[index] += value * factor. Does not validate: call validSparse() first.
void addSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    float factor,
    float* dense);

// A range of whole parts of an encoding of n places and k values: `count`
// values from value number `before` on.
struct SparseRange {
  size_t first_part = 0;
  size_t parts = 0;
  size_t before = 0;
  size_t count = 0;
};
// Writes the range as a separate encoding in which the range's first place is
// 0: parts * 4 + count * 4 bytes.
void cutSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    const SparseRange& range,
    uint8_t* out);

} // namespace commprof::kernels
