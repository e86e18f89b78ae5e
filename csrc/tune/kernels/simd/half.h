// Conversions between fp32 and IEEE 754 binary16 in plain C++. They give the
// same bits as the F16C instructions.
#pragma once

#include <cstdint>
#include <cstring>

namespace commprof::kernels {
namespace {

inline uint16_t halfFromFloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) { // NaN
    return uint16_t(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
  }
  if (bits >= 0x47800000u) { // 65536 and above
    return uint16_t(sign | 0x7c00u);
  }
  if (bits >= 0x38800000u) { // normal; may round up to infinity
    const uint32_t rounded = bits + 0xfffu + (bits >> 13 & 1u);
    return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (bits < 0x33000000u) { // below half of the smallest denormal
    return sign;
  }
  const uint32_t shift = 126u - (bits >> 23); // 14 to 24
  const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t odd = mantissa >> shift & 1u;
  return uint16_t(sign | ((mantissa + half - 1 + odd) >> shift));
}

inline float floatFromHalf(uint16_t x) {
  const uint32_t sign = uint32_t(x & 0x8000u) << 16;
  uint32_t exponent = x >> 10 & 0x1fu;
  uint32_t mantissa = x & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u);
  } else if (exponent != 0) {
    bits = (exponent + 112u) << 23 | mantissa << 13;
  } else if (mantissa == 0) {
    bits = 0;
  } else { // denormal: normalise
    exponent = 113;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    bits = exponent << 23 | (mantissa & 0x3ffu) << 13;
  }
  bits |= sign;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

} // namespace
} // namespace commprof::kernels
