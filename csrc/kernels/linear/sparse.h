// Chosen values on the wire, 4 bytes each: per 65,536 places one u32 count,
// then all offsets within their 65,536 as u16, ascending, then all values as
// binary16 of value * scale. Little-endian, no padding, at an even address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

inline constexpr size_t kSparsePart = 65536; // places that one count speaks of

constexpr size_t sparseParts(size_t n) {
  return (n + kSparsePart - 1) / kSparsePart;
}
constexpr size_t sparseBytes(size_t n, size_t k) {
  return sparseParts(n) * 4 + k * 4;
}

// indices ascending and below n. Where residual is not null, residual[index]
// becomes what rounding lost: value - half(value * scale) / scale.
void encodeSparse(
    const int32_t* indices,
    const float* values,
    size_t k,
    size_t n,
    float scale,
    float* residual,
    uint8_t* out);

// Whether `in` (sparseBytes(n, k) long, any content) is a well-formed encoding:
// counts that add up to k, offsets strictly ascending within each part and
// below n.
bool validSparse(const uint8_t* in, size_t n, size_t k);

// dense[index] += value * factor. Call validSparse() first; this trusts it.
void addSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    float factor,
    float* dense);

// Some whole parts of an encoding of n places and k values: `count` values from
// number `before` on.
struct SparseRange {
  size_t first_part = 0;
  size_t parts = 0;
  size_t before = 0;
  size_t count = 0;
};
// Writes this range as an encoding of its own, in which the range's first place
// is 0: parts * 4 + count * 4 bytes.
void cutSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    const SparseRange& range,
    uint8_t* out);

} // namespace commprof::kernels
