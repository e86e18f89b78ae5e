// Chosen values on the wire, 4 bytes each: per 65,536 places one u32 count,
// then all offsets within their 65,536 as u16, ascending, then all values as
// binary16 of value * scale. Little-endian, no padding, at an even address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

constexpr size_t sparseBytes(size_t n, size_t k) {
  return (n + 65535) / 65536 * 4 + k * 4;
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

} // namespace commprof::kernels
