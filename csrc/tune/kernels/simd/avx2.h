// Sixteen lanes in two registers. For files compiled with -mavx2 -mfma -mf16c.
#pragma once

#include <immintrin.h>
#include <cstdint>

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};
struct Mask { // in a lane that is set, all bits are 1
  __m256i lo, hi;
};

inline __m256i* asVector(void* p) {
  return static_cast<__m256i*>(p);
}
inline const __m256i* asVector(const void* p) {
  return static_cast<const __m256i*>(p);
}

inline F32 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline void stream(float* p, F32 a) {
  _mm256_stream_ps(p, a.lo);
  _mm256_stream_ps(p + 8, a.hi);
}
inline void streamed() {
  _mm_sfence();
}
inline I32 load(const int32_t* p) {
  return {_mm256_loadu_si256(asVector(p)), _mm256_loadu_si256(asVector(p + 8))};
}
inline void store(int32_t* p, I32 a) {
  _mm256_storeu_si256(asVector(p), a.lo);
  _mm256_storeu_si256(asVector(p + 8), a.hi);
}
inline F32 set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline I32 set1(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline I32 iota() {
  return {
      _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
      _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
inline I32 asInt(F32 a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
inline F32 asFloat(I32 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}

inline F32 add(F32 a, F32 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32 sub(F32 a, F32 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32 mul(F32 a, F32 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32 fnma(F32 a, F32 b, F32 c) {
  return {
      _mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline float sumLanes(F32 a) {
  const __m256 sum8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 sum4 =
      _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  const __m128 sum2 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
  return _mm_cvtss_f32(_mm_add_ss(sum2, _mm_movehdup_ps(sum2)));
}

inline I32 add(I32 a, I32 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline I32 bitAnd(I32 a, I32 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
inline I32 bitOr(I32 a, I32 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int kBits>
inline I32 shiftRight(I32 a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
template <int kBits>
inline I32 shiftLeft(I32 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
inline I32 shiftRightSigned(I32 a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
inline I32 max(I32 a, I32 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
inline I32 min(I32 a, I32 b) {
  return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
inline int32_t maxLanes(I32 a) {
  const __m256i max8 = _mm256_max_epi32(a.lo, a.hi);
  __m128i max4 = _mm_max_epi32(
      _mm256_castsi256_si128(max8), _mm256_extracti128_si256(max8, 1));
  max4 = _mm_max_epi32(max4, _mm_shuffle_epi32(max4, 0x4e));
  max4 = _mm_max_epi32(max4, _mm_shuffle_epi32(max4, 0xb1));
  return _mm_cvtsi128_si32(max4);
}

inline Mask greater(I32 a, I32 b) {
  return {_mm256_cmpgt_epi32(a.lo, b.lo), _mm256_cmpgt_epi32(a.hi, b.hi)};
}
inline Mask equal(I32 a, I32 b) {
  return {_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)};
}
inline Mask nans(F32 a) {
  return {
      _mm256_castps_si256(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
      _mm256_castps_si256(_mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}
inline uint32_t toBits(Mask m) {
  const int lo = _mm256_movemask_ps(_mm256_castsi256_ps(m.lo));
  const int hi = _mm256_movemask_ps(_mm256_castsi256_ps(m.hi));
  return uint32_t(lo) | uint32_t(hi) << 8;
}
inline Mask fromBits(uint32_t bits) {
  const I32 lane_bit = {
      _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128),
      _mm256_setr_epi32(
          1 << 8,
          1 << 9,
          1 << 10,
          1 << 11,
          1 << 12,
          1 << 13,
          1 << 14,
          1 << 15)};
  return equal(bitAnd(set1(int32_t(bits)), lane_bit), lane_bit);
}
inline F32 zeroWhere(Mask m, F32 a) {
  return {
      _mm256_andnot_ps(_mm256_castsi256_ps(m.lo), a.lo),
      _mm256_andnot_ps(_mm256_castsi256_ps(m.hi), a.hi)};
}
inline F32 select(Mask m, F32 a, F32 b) {
  return {
      _mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
      _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}
inline I32 select(Mask m, I32 a, I32 b) {
  return {
      _mm256_blendv_epi8(b.lo, a.lo, m.lo),
      _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}

// row[bits] lists the positions of the bits that are 1 in `bits`, ascending.
struct PackTable {
  alignas(32) int32_t row[256][8];
};
constexpr PackTable makePackTable() {
  PackTable table{};
  for (int bits = 0; bits < 256; ++bits) {
    int next = 0;
    for (int lane = 0; lane < 8; ++lane) {
      if ((bits >> lane & 1) != 0) {
        table.row[bits][next++] = lane;
      }
    }
  }
  return table;
}
inline constexpr PackTable kPackTable = makePackTable();

inline __m256i packOrder(uint32_t bits) {
  return _mm256_load_si256(asVector(kPackTable.row[bits & 255]));
}
inline void storePacked(float* p, F32 a, uint32_t bits) {
  _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(a.lo, packOrder(bits)));
  p += __builtin_popcount(bits & 255);
  _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(a.hi, packOrder(bits >> 8)));
}
inline void storePacked(int32_t* p, I32 a, uint32_t bits) {
  const __m256i lo = _mm256_permutevar8x32_epi32(a.lo, packOrder(bits));
  const __m256i hi = _mm256_permutevar8x32_epi32(a.hi, packOrder(bits >> 8));
  _mm256_storeu_si256(asVector(p), lo);
  _mm256_storeu_si256(asVector(p + __builtin_popcount(bits & 255)), hi);
}

inline I32 roundToInt(F32 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
inline F32 toFloat(I32 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
inline void storeInt8(int8_t* p, I32 a) {
  // The first pack works within 128-bit halves; the permutation restores the
  // order.
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes = _mm_packs_epi16(
      _mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// Two loads of 8 bytes, because a conversion from memory needs no shuffle.
inline I32 loadInt8(const int8_t* p) {
  return {
      _mm256_cvtepi8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
      _mm256_cvtepi8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void storeUint16(uint16_t* p, I32 a) {
  const __m256i low16 = _mm256_set1_epi32(0xffff);
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(
          _mm256_and_si256(a.lo, low16), _mm256_and_si256(a.hi, low16)),
      0xd8);
  _mm256_storeu_si256(asVector(p), words);
}
inline void storeUpper16(uint16_t* p, I32 a) {
  const I32 upper = shiftRight<16>(a);
  _mm256_storeu_si256(
      asVector(p),
      _mm256_permute4x64_epi64(_mm256_packus_epi32(upper.lo, upper.hi), 0xd8));
}
inline __m128i load8(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline I32 loadUint16(const uint16_t* p) {
  return {_mm256_cvtepu16_epi32(load8(p)), _mm256_cvtepu16_epi32(load8(p + 8))};
}
inline void storeHalf(uint16_t* p, F32 a) {
  const __m128i lo = _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT);
  const __m128i hi = _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), lo);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), hi);
}
inline F32 loadHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(load8(p)), _mm256_cvtph_ps(load8(p + 8))};
}

struct F64 {
  __m256d lo, hi;
};
inline F64 zeroF64() {
  return {_mm256_setzero_pd(), _mm256_setzero_pd()};
}
inline F64 widen(__m256 a) {
  return {
      _mm256_cvtps_pd(_mm256_castps256_ps128(a)),
      _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
}
inline F64 lowHalf(F32 a) {
  return widen(a.lo);
}
inline F64 highHalf(F32 a) {
  return widen(a.hi);
}
inline F64 add(F64 a, F64 b) {
  return {_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)};
}
inline F64 sub(F64 a, F64 b) {
  return {_mm256_sub_pd(a.lo, b.lo), _mm256_sub_pd(a.hi, b.hi)};
}
inline F64 mul(F64 a, F64 b) {
  return {_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)};
}
inline double sumLanes(F64 a) {
  const __m256d sum4 = _mm256_add_pd(a.lo, a.hi);
  const __m128d sum2 =
      _mm_add_pd(_mm256_castpd256_pd128(sum4), _mm256_extractf128_pd(sum4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(sum2, _mm_unpackhi_pd(sum2, sum2)));
}

} // namespace
} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
