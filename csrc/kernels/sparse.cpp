#include "kernels/sparse.h"

#include <cstring>

#include "kernels/simd/half.h"

namespace commprof::kernels {

namespace {

constexpr size_t kPart = 65536;

size_t parts(size_t n) {
  return (n + kPart - 1) / kPart;
}

template <class T>
T read(const uint8_t* in, size_t index) {
  T out;
  std::memcpy(&out, in + index * sizeof out, sizeof out);
  return out;
}

template <class T>
void write(uint8_t* out, size_t index, T value) {
  std::memcpy(out + index * sizeof value, &value, sizeof value);
}

} // namespace

void encodeSparse(
    const int32_t* indices,
    const float* values,
    size_t k,
    size_t n,
    float scale,
    float* residual,
    uint8_t* out) {
  uint8_t* offsets = out + parts(n) * sizeof(uint32_t);
  uint8_t* halves = offsets + k * sizeof(uint16_t);
  const float inverse = 1.0f / scale;
  size_t next = 0;
  for (size_t part = 0; part < parts(n); ++part) {
    const size_t first = next;
    for (; next < k && size_t(indices[next]) / kPart == part; ++next) {
      write(offsets, next, uint16_t(indices[next]));
      const uint16_t half = halfFromFloat(values[next] * scale);
      write(halves, next, half);
      if (residual != nullptr) {
        residual[indices[next]] = values[next] - floatFromHalf(half) * inverse;
      }
    }
    write(out, part, uint32_t(next - first));
  }
}

bool validSparse(const uint8_t* in, size_t n, size_t k) {
  const uint8_t* offsets = in + parts(n) * sizeof(uint32_t);
  size_t next = 0;
  for (size_t part = 0; part < parts(n); ++part) {
    const size_t count = read<uint32_t>(in, part);
    if (count > k - next) {
      return false;
    }
    const size_t end = n - part * kPart < kPart ? n - part * kPart : kPart;
    for (size_t i = 0; i < count; ++i, ++next) {
      const uint16_t offset = read<uint16_t>(offsets, next);
      if (offset >= end ||
          (i != 0 && offset <= read<uint16_t>(offsets, next - 1))) {
        return false;
      }
    }
  }
  return next == k;
}

void addSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    float factor,
    float* dense) {
  const uint8_t* offsets = in + parts(n) * sizeof(uint32_t);
  const uint8_t* halves = offsets + k * sizeof(uint16_t);
  size_t next = 0;
  for (size_t part = 0; part < parts(n); ++part) {
    const size_t end = next + read<uint32_t>(in, part);
    for (; next < end; ++next) {
      const size_t index = part * kPart + read<uint16_t>(offsets, next);
      dense[index] += floatFromHalf(read<uint16_t>(halves, next)) * factor;
    }
  }
}

} // namespace commprof::kernels
