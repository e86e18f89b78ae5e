// Element-wise reduction of several arrays in the given order. The result is
// bitwise equal on all ranks. 16-bit types are summed in fp32 and rounded once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

enum class Element : uint8_t { kF32, kF64, kF16, kBf16, kI32, kI64 };
enum class Reduction : uint8_t { kSum, kMean, kMax, kMin };

constexpr size_t elementBytes(Element element) {
  constexpr size_t kBytes[] = {4, 8, 2, 2, 4, 8};
  return kBytes[size_t(element)];
}

// out[i] = in[0][i] op in[1][i] op ... The mean is the sum times 1 / count; for
// integers, it is the sum divided by count, rounded towards zero. max and min
// with a NaN return either operand. `out` may be one of the inputs, but must
// not overlap an input partially.
void combine(
    Element element,
    Reduction reduction,
    const std::byte* const* in,
    int count,
    std::byte* out,
    size_t n);

} // namespace commprof::kernels
