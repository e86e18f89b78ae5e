// Sixteen lanes in plain C++, for CPUs without AVX2. vec.h describes the
// operations.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tune/kernels/simd/half.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

struct F32 {
  float lane[16];
};
struct I32 {
  int32_t lane[16];
};
struct Mask {
  uint32_t bits;
};

#define COMMPROF_LANES for (int i = 0; i < 16; ++i)

inline F32 load(const float* p) {
  F32 out;
  std::memcpy(out.lane, p, sizeof out.lane);
  return out;
}
inline void store(float* p, F32 v) {
  std::memcpy(p, v.lane, sizeof v.lane);
}
inline void stream(float* p, F32 v) {
  store(p, v);
}
inline void streamed() {}
inline I32 load(const int32_t* p) {
  I32 out;
  std::memcpy(out.lane, p, sizeof out.lane);
  return out;
}
inline void store(int32_t* p, I32 v) {
  std::memcpy(p, v.lane, sizeof v.lane);
}
inline F32 set1(float x) {
  F32 out;
  COMMPROF_LANES out.lane[i] = x;
  return out;
}
inline I32 set1(int32_t x) {
  I32 out;
  COMMPROF_LANES out.lane[i] = x;
  return out;
}
inline I32 iota() {
  I32 out;
  COMMPROF_LANES out.lane[i] = i;
  return out;
}
inline I32 asInt(F32 v) {
  I32 out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}
inline F32 asFloat(I32 v) {
  F32 out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}

inline F32 add(F32 a, F32 b) {
  COMMPROF_LANES a.lane[i] += b.lane[i];
  return a;
}
inline F32 sub(F32 a, F32 b) {
  COMMPROF_LANES a.lane[i] -= b.lane[i];
  return a;
}
inline F32 mul(F32 a, F32 b) {
  COMMPROF_LANES a.lane[i] *= b.lane[i];
  return a;
}
inline F32 fma(F32 a, F32 b, F32 c) {
  COMMPROF_LANES a.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
  return a;
}
inline F32 fnma(F32 a, F32 b, F32 c) {
  COMMPROF_LANES {
    // The x86 instruction keeps the sign of a NaN in a.
    const float minus = std::isnan(a.lane[i]) ? a.lane[i] : -a.lane[i];
    a.lane[i] = std::fma(minus, b.lane[i], c.lane[i]);
  }
  return a;
}
inline float sumLanes(F32 v) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      v.lane[i] += v.lane[i + half];
    }
  }
  return v.lane[0];
}

inline I32 add(I32 a, I32 b) {
  COMMPROF_LANES a.lane[i] = int32_t(uint32_t(a.lane[i]) + uint32_t(b.lane[i]));
  return a;
}
inline I32 bitAnd(I32 a, I32 b) {
  COMMPROF_LANES a.lane[i] &= b.lane[i];
  return a;
}
inline I32 bitOr(I32 a, I32 b) {
  COMMPROF_LANES a.lane[i] |= b.lane[i];
  return a;
}
template <int kBits>
inline I32 shiftRight(I32 a) {
  COMMPROF_LANES a.lane[i] = int32_t(uint32_t(a.lane[i]) >> kBits);
  return a;
}
template <int kBits>
inline I32 shiftLeft(I32 a) {
  COMMPROF_LANES a.lane[i] = int32_t(uint32_t(a.lane[i]) << kBits);
  return a;
}
template <int kBits>
inline I32 shiftRightSigned(I32 a) {
  COMMPROF_LANES a.lane[i] >>= kBits; // arithmetic since C++20
  return a;
}
inline I32 max(I32 a, I32 b) {
  COMMPROF_LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline I32 min(I32 a, I32 b) {
  COMMPROF_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline int32_t maxLanes(I32 v) {
  int32_t out = v.lane[0];
  COMMPROF_LANES out = v.lane[i] > out ? v.lane[i] : out;
  return out;
}

inline Mask greater(I32 a, I32 b) {
  uint32_t bits = 0;
  COMMPROF_LANES bits |= uint32_t(a.lane[i] > b.lane[i]) << i;
  return {bits};
}
inline Mask equal(I32 a, I32 b) {
  uint32_t bits = 0;
  COMMPROF_LANES bits |= uint32_t(a.lane[i] == b.lane[i]) << i;
  return {bits};
}
inline Mask nans(F32 v) {
  uint32_t bits = 0;
  COMMPROF_LANES bits |= uint32_t(std::isnan(v.lane[i])) << i;
  return {bits};
}
inline uint32_t toBits(Mask m) {
  return m.bits;
}
inline Mask fromBits(uint32_t bits) {
  return {bits & 0xffffu};
}
inline F32 zeroWhere(Mask m, F32 v) {
  COMMPROF_LANES v.lane[i] = (m.bits >> i & 1) != 0 ? 0.0f : v.lane[i];
  return v;
}
inline F32 select(Mask m, F32 a, F32 b) {
  COMMPROF_LANES b.lane[i] = (m.bits >> i & 1) != 0 ? a.lane[i] : b.lane[i];
  return b;
}
inline I32 select(Mask m, I32 a, I32 b) {
  COMMPROF_LANES b.lane[i] = (m.bits >> i & 1) != 0 ? a.lane[i] : b.lane[i];
  return b;
}
template <class Lanes>
inline Lanes packLanes(Lanes v, uint32_t bits) {
  Lanes out = v;
  int next = 0;
  COMMPROF_LANES if ((bits >> i & 1) != 0) {
    out.lane[next++] = v.lane[i];
  }
  return out;
}
inline void storePacked(float* p, F32 v, uint32_t bits) {
  store(p, packLanes(v, bits));
}
inline void storePacked(int32_t* p, I32 v, uint32_t bits) {
  store(p, packLanes(v, bits));
}

inline I32 roundToInt(F32 v) {
  I32 out;
  COMMPROF_LANES {
    const float x = v.lane[i];
    const bool fits = x >= -2147483648.0f && x < 2147483648.0f;
    out.lane[i] = fits ? int32_t(std::nearbyintf(x)) : INT32_MIN;
  }
  return out;
}
inline F32 toFloat(I32 v) {
  F32 out;
  COMMPROF_LANES out.lane[i] = float(v.lane[i]);
  return out;
}
inline void storeInt8(int8_t* p, I32 v) {
  COMMPROF_LANES {
    const int32_t x = v.lane[i];
    p[i] = int8_t(x < -128 ? -128 : x > 127 ? 127 : x);
  }
}
inline I32 loadInt8(const int8_t* p) {
  I32 out;
  COMMPROF_LANES out.lane[i] = p[i];
  return out;
}
inline void storeUint16(uint16_t* p, I32 v) {
  COMMPROF_LANES p[i] = uint16_t(v.lane[i]);
}
inline void storeUpper16(uint16_t* p, I32 v) {
  storeUint16(p, shiftRight<16>(v));
}
inline I32 loadUint16(const uint16_t* p) {
  I32 out;
  COMMPROF_LANES out.lane[i] = p[i];
  return out;
}
inline void storeHalf(uint16_t* p, F32 v) {
  COMMPROF_LANES p[i] = halfFromFloat(v.lane[i]);
}
inline F32 loadHalf(const uint16_t* p) {
  F32 out;
  COMMPROF_LANES out.lane[i] = floatFromHalf(p[i]);
  return out;
}

#undef COMMPROF_LANES
#define COMMPROF_LANES for (int i = 0; i < 8; ++i)

struct F64 {
  double lane[8];
};
inline F64 zeroF64() {
  return {};
}
inline F64 lowHalf(F32 v) {
  F64 out;
  COMMPROF_LANES out.lane[i] = double(v.lane[i]);
  return out;
}
inline F64 highHalf(F32 v) {
  F64 out;
  COMMPROF_LANES out.lane[i] = double(v.lane[i + 8]);
  return out;
}
inline F64 add(F64 a, F64 b) {
  COMMPROF_LANES a.lane[i] += b.lane[i];
  return a;
}
inline F64 sub(F64 a, F64 b) {
  COMMPROF_LANES a.lane[i] -= b.lane[i];
  return a;
}
inline F64 mul(F64 a, F64 b) {
  COMMPROF_LANES a.lane[i] *= b.lane[i];
  return a;
}
inline double sumLanes(F64 v) {
  for (int half = 4; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      v.lane[i] += v.lane[i + half];
    }
  }
  return v.lane[0];
}

#undef COMMPROF_LANES

} // namespace
} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
