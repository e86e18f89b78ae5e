// Sixteen lanes in one register. For files compiled with -mavx512f/bw/vl/dq.
#pragma once

// GCC 12 warns about the intentionally undefined operands in its own header
// (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

inline F32 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, F32 a) {
  _mm512_storeu_ps(p, a.v);
}
inline void stream(float* p, F32 a) {
  _mm512_stream_ps(p, a.v);
}
inline void streamed() {
  _mm_sfence();
}
inline I32 load(const int32_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline void store(int32_t* p, I32 a) {
  _mm512_storeu_si512(p, a.v);
}
inline F32 set1(float x) {
  return {_mm512_set1_ps(x)};
}
inline I32 set1(int32_t x) {
  return {_mm512_set1_epi32(x)};
}
inline I32 iota() {
  return {
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
inline I32 asInt(F32 a) {
  return {_mm512_castps_si512(a.v)};
}
inline F32 asFloat(I32 a) {
  return {_mm512_castsi512_ps(a.v)};
}

inline F32 add(F32 a, F32 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline F32 sub(F32 a, F32 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline F32 mul(F32 a, F32 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 fnma(F32 a, F32 b, F32 c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
inline float sumLanes(F32 a) {
  const __m256 upper8 = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 sum8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper8);
  const __m128 sum4 =
      _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  const __m128 sum2 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
  return _mm_cvtss_f32(_mm_add_ss(sum2, _mm_movehdup_ps(sum2)));
}

inline I32 add(I32 a, I32 b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
inline I32 bitAnd(I32 a, I32 b) {
  return {_mm512_and_si512(a.v, b.v)};
}
inline I32 bitOr(I32 a, I32 b) {
  return {_mm512_or_si512(a.v, b.v)};
}
template <int kBits>
inline I32 shiftRight(I32 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
template <int kBits>
inline I32 shiftLeft(I32 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline I32 shiftRightSigned(I32 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
inline I32 max(I32 a, I32 b) {
  return {_mm512_max_epi32(a.v, b.v)};
}
inline I32 min(I32 a, I32 b) {
  return {_mm512_min_epi32(a.v, b.v)};
}
inline int32_t maxLanes(I32 a) {
  return _mm512_reduce_max_epi32(a.v);
}

inline Mask greater(I32 a, I32 b) {
  return {_mm512_cmpgt_epi32_mask(a.v, b.v)};
}
inline Mask equal(I32 a, I32 b) {
  return {_mm512_cmpeq_epi32_mask(a.v, b.v)};
}
inline Mask nans(F32 a) {
  return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)};
}
inline uint32_t toBits(Mask m) {
  return m.v;
}
inline Mask fromBits(uint32_t bits) {
  return {__mmask16(bits)};
}
inline F32 zeroWhere(Mask m, F32 a) {
  return {_mm512_maskz_mov_ps(__mmask16(~m.v), a.v)};
}
inline F32 select(Mask m, F32 a, F32 b) {
  return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}
inline I32 select(Mask m, I32 a, I32 b) {
  return {_mm512_mask_blend_epi32(m.v, b.v, a.v)};
}
// Packs in a register, because packing directly to memory is slow on Zen 4.
inline void storePacked(float* p, F32 a, uint32_t bits) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(__mmask16(bits), a.v));
}
inline void storePacked(int32_t* p, I32 a, uint32_t bits) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(__mmask16(bits), a.v));
}

inline I32 roundToInt(F32 a) {
  return {_mm512_cvtps_epi32(a.v)};
}
inline F32 toFloat(I32 a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
inline void storeInt8(int8_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}
inline I32 loadInt8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void storeUint16(uint16_t* p, I32 a) {
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
inline void storeUpper16(uint16_t* p, I32 a) {
  storeUint16(p, shiftRight<16>(a));
}
inline I32 loadUint16(const uint16_t* p) {
  return {_mm512_cvtepu16_epi32(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void storeHalf(uint16_t* p, F32 a) {
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(p),
      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F32 loadHalf(const uint16_t* p) {
  return {
      _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

struct F64 {
  __m512d v;
};
inline F64 zeroF64() {
  return {_mm512_setzero_pd()};
}
inline F64 lowHalf(F32 a) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v))};
}
inline F64 highHalf(F32 a) {
  return {_mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))};
}
inline F64 add(F64 a, F64 b) {
  return {_mm512_add_pd(a.v, b.v)};
}
inline F64 sub(F64 a, F64 b) {
  return {_mm512_sub_pd(a.v, b.v)};
}
inline F64 mul(F64 a, F64 b) {
  return {_mm512_mul_pd(a.v, b.v)};
}
inline double sumLanes(F64 a) {
  const __m256d upper4 = _mm512_extractf64x4_pd(a.v, 1);
  const __m256d sum4 = _mm256_add_pd(_mm512_castpd512_pd256(a.v), upper4);
  const __m128d sum2 =
      _mm_add_pd(_mm256_castpd256_pd128(sum4), _mm256_extractf128_pd(sum4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(sum2, _mm_unpackhi_pd(sum2, sum2)));
}

} // namespace
} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
