#include "base/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace commprof {

namespace {

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

// Table [k][b]: the checksum of byte b followed by k zero bytes.
CrcTables makeCrcTables() {
  CrcTables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) {
      c = (c & 1) ? 0xedb88320u ^ (c >> 1) : c >> 1;
    }
    tables[0][i] = c;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t c = tables[k - 1][i];
      tables[k][i] = tables[0][c & 0xff] ^ (c >> 8);
    }
  }
  return tables;
}

// Slicing by 8 (Kounavis and Berry, 2005): processes eight bytes per iteration.
// Each of the eight bytes uses the table for its distance from the last one.
uint32_t withTables(
    uint32_t c,
    const unsigned char* at,
    size_t bytes) noexcept {
  static const CrcTables tables = makeCrcTables();
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t eight;
    std::memcpy(&eight, at, 8); // little-endian, like every number in a trace
    eight ^= c;
    c = 0;
    for (size_t k = 0; k < 8; ++k) {
      c ^= tables[7 - k][(eight >> (8 * k)) & 0xff];
    }
  }
  for (; bytes > 0; ++at, --bytes) {
    c = tables[0][(c ^ *at) & 0xff] ^ (c >> 8);
  }
  return c;
}

#if defined(__x86_64__)

// Returns x^power modulo the polynomial, bit-reflected, in the upper half of 64
// bits.
constexpr int64_t powerOfX(int power) {
  uint32_t value = 0x80000000u;
  for (int i = 0; i < power; ++i) {
    value = (value & 1) ? 0xedb88320u ^ (value >> 1) : value >> 1;
  }
  return int64_t(uint64_t(value) << 32);
}

constexpr size_t kLane = 16; // bytes of a register
constexpr size_t kLanes = 4;

// Moves 16 bytes by `kBytes` towards the end of the message and adds `next`,
// the 16 bytes at that place. The checksum stays the same. The product of two
// reflected numbers is x times too large, so the exponents are smaller by one.
template <int kBytes>
__attribute__((target("pclmul,sse2"))) inline __m128i folded(
    __m128i bytes,
    __m128i next) noexcept {
  constexpr int64_t kEarly = powerOfX(8 * kBytes + 63);
  constexpr int64_t kLate = powerOfX(8 * kBytes - 1);
  const __m128i powers = _mm_set_epi64x(kLate, kEarly);
  const __m128i early = _mm_clmulepi64_si128(bytes, powers, 0x00);
  const __m128i late = _mm_clmulepi64_si128(bytes, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(early, late), next);
}

__attribute__((target("pclmul,sse2"))) inline __m128i loaded(
    const unsigned char* at) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// Folds the message, four registers at a time, into 16 bytes with the same
// checksum (Gopal et al., 2009).
__attribute__((target("pclmul,sse2"))) uint32_t
withProducts(uint32_t c, const unsigned char* at, size_t bytes) noexcept {
  __m128i a = _mm_xor_si128(loaded(at), _mm_cvtsi32_si128(int(c)));
  __m128i b = loaded(at + kLane);
  __m128i d = loaded(at + 2 * kLane);
  __m128i e = loaded(at + 3 * kLane);
  constexpr int kStride = kLane * kLanes;
  at += kStride;
  bytes -= kStride;
  for (; bytes >= kStride; at += kStride, bytes -= kStride) {
    a = folded<kStride>(a, loaded(at));
    b = folded<kStride>(b, loaded(at + kLane));
    d = folded<kStride>(d, loaded(at + 2 * kLane));
    e = folded<kStride>(e, loaded(at + 3 * kLane));
  }
  const __m128i last = folded<kLane>(folded<kLane>(folded<kLane>(a, b), d), e);
  alignas(kLane) unsigned char remainder[kLane];
  _mm_store_si128(reinterpret_cast<__m128i*>(remainder), last);
  return withTables(withTables(0, remainder, kLane), at, bytes);
}

#endif

} // namespace

uint32_t crc32(const void* data, size_t bytes) noexcept {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t c = 0xffffffffu;
#if defined(__x86_64__)
  if (bytes >= 2 * kLane * kLanes && __builtin_cpu_supports("pclmul")) {
    return ~withProducts(c, at, bytes);
  }
#endif
  return ~withTables(c, at, bytes);
}

} // namespace commprof
