#include <limits>

#include "kernel_cases.h"
#include "tune/kernels/blocks/cast.h"

using namespace commprof::kernels;
using namespace kernel_cases;

namespace {

float floatOf(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

uint32_t bitsOf(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}

uint16_t nearestHalf(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) {
    return uint16_t(sign | 0x7e00 | (bitsOf(x) >> 13 & 0x3ff));
  }
  const double magnitude = std::fabs(double(x));
  // The largest binary16 value is 65504, and 65520 is half way to 65536.
  if (magnitude >= 65520) {
    return sign | 0x7c00;
  }
  int exponent = -14;
  if (magnitude >= 0x1p-14) {
    exponent = std::ilogb(magnitude);
  }
  const double spacings = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // Normal values have at least 1024 spacings, which carry into the exponent.
  return uint16_t(sign | (((exponent + 14) << 10) + int(spacings)));
}

float valueOfHalf(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  if (exponent == 31 && mantissa != 0) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    return floatOf(sign | 0x7fc00000u | uint32_t(mantissa) << 13);
  }
  const double magnitude = exponent == 31 ? INFINITY
      : exponent == 0 ? std::ldexp(mantissa, -24)
                      : std::ldexp(mantissa + 1024, exponent - 25);
  return float((half & 0x8000) != 0 ? -magnitude : magnitude);
}

uint16_t nearestBfloat16(float x) {
  const uint32_t bits = bitsOf(x);
  if (std::isnan(x)) {
    return uint16_t(bits >> 16 | 0x40);
  }
  const uint32_t rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (bits >> 16 & 1) != 0);
  return uint16_t((bits >> 16) + (up ? 1 : 0));
}

float valueOfBfloat16(uint16_t x) {
  return floatOf(uint32_t(x) << 16);
}

struct Type {
  const char* name;
  float scale;
  uint16_t (*nearest)(float);
  float (*value)(uint16_t);
  void (*encode)(const float*, float*, uint16_t*, size_t, float);
  void (*decode)(const uint16_t*, float*, size_t, float);
  void (*reduce)(const uint16_t* const*, const float*, int, uint16_t*, size_t);
  void (*sum)(const uint16_t* const*, const float*, int, float*, size_t);
};
const Type kTypes[] = {
    {"half",
     1,
     nearestHalf,
     valueOfHalf,
     encodeHalf,
     decodeHalf,
     reduceHalf,
     sumHalf},
    {"half x 2^12",
     4096,
     nearestHalf,
     valueOfHalf,
     encodeHalf,
     decodeHalf,
     reduceHalf,
     sumHalf},
    {"bfloat16",
     1,
     nearestBfloat16,
     valueOfBfloat16,
     [](const float* x, float* residual, uint16_t* out, size_t n, float) {
       encodeBfloat16(x, residual, out, n);
     },
     decodeBfloat16,
     reduceBfloat16,
     sumBfloat16},
};

std::vector<uint16_t> allSixteenBits() {
  std::vector<uint16_t> out(65536);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = uint16_t(i);
  }
  return out;
}

std::vector<float> denseFloats() {
  std::vector<float> out;
  Random random(1);
  for (uint32_t upper = 0; upper < 1u << 19; ++upper) {
    for (const uint32_t lower : {0u, 0xfffu, 0x1000u, 0x1001u}) {
      out.push_back(floatOf(upper << 13 | lower));
    }
    out.push_back(floatOf(upper << 13 | (random.bits() & 0x1fffu)));
  }
  return out;
}

void every16BitValueDecodes(const Type& type) {
  const std::vector<uint16_t> in = allSixteenBits();
  std::vector<float> expected, out(in.size());
  for (const uint16_t bits : in) {
    // Arithmetic makes a NaN quiet, even multiplication by one.
    const float value = type.value(bits);
    expected.push_back(
        std::isnan(value) ? floatOf(bitsOf(value) | 0x400000u) : value);
  }
  forEachLevel([&](const std::string& level) {
    type.decode(in.data(), out.data(), in.size(), 1);
    CHECK_SAME_BITS(out, expected, level + " " + type.name);
  });
}

void floatsEncodeToNearest(const Type& type, const std::vector<float>& x) {
  std::vector<uint16_t> expected, out(x.size());
  for (const float value : x) {
    expected.push_back(type.nearest(value * type.scale));
  }
  forEachLevel([&](const std::string& level) {
    type.encode(x.data(), nullptr, out.data(), x.size(), type.scale);
    CHECK_SAME_BITS(out, expected, level + " " + type.name);
  });
}

void encodesWithoutFeedback(const Type& type, const Case& c) {
  std::vector<uint16_t> expected;
  for (const float value : c.x) {
    expected.push_back(type.nearest(value * type.scale));
  }
  const Input<float> x(c.x, c.offset);
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + type.name + " " + c.name;
    Output<uint16_t> out(c.n, c.offset);
    type.encode(x.data(), nullptr, out.data(), c.n, type.scale);
    CHECK_SAME_BITS(out.values(), expected, what);
    CHECK_AT(out.guardsIntact(), what);
  });
}

void feedbackKeepsTheRoundingError(const Type& type, const Case& c) {
  std::vector<uint16_t> expected;
  std::vector<float> lost;
  for (size_t i = 0; i < c.n; ++i) {
    const float sum = c.x[i] + c.residual[i];
    expected.push_back(type.nearest(sum * type.scale));
    lost.push_back(sum - type.value(expected[i]) / type.scale);
  }
  const Input<float> x(c.x, c.offset);
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + type.name + " " + c.name;
    Output<uint16_t> out(c.n, c.offset);
    Output<float> residual(c.residual, c.offset);
    type.encode(x.data(), residual.data(), out.data(), c.n, type.scale);
    CHECK_SAME_BITS(out.values(), expected, what);
    CHECK_SAME_BITS(residual.values(), lost, what);
    CHECK_AT(out.guardsIntact() && residual.guardsIntact(), what);
  });
}

std::vector<uint16_t> encoded(
    const Type& type,
    const Pattern& pattern,
    size_t n,
    uint64_t seed) {
  const std::vector<float> x = make(pattern, n, seed);
  std::vector<uint16_t> out(n);
  type.encode(x.data(), nullptr, out.data(), n, type.scale);
  return out;
}

void reduceSumsInOrder(const Type& type, size_t n, int count) {
  const float factors[] = {0.3f, 1, 0.25f, 3, 0x1p-3f};
  std::vector<Input<uint16_t>> in;
  std::vector<const uint16_t*> pointers;
  std::vector<float> sums(n);
  for (int w = 0; w < count; ++w) {
    const auto values = encoded(type, kPatterns[8 + w % 2], n, w + 1);
    in.emplace_back(values, w);
    for (size_t i = 0; i < n; ++i) {
      const float term = type.value(values[i]) * factors[w];
      sums[i] = w == 0 ? term : sums[i] + term;
    }
  }
  for (const Input<uint16_t>& each : in) {
    pointers.push_back(each.data());
  }
  std::vector<uint16_t> expected;
  for (const float sum : sums) {
    expected.push_back(type.nearest(sum));
  }
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + type.name + " " + std::to_string(n) +
        " x " + std::to_string(count);
    Output<uint16_t> out(n, 1);
    type.reduce(pointers.data(), factors, count, out.data(), n);
    CHECK_SAME_BITS(out.values(), expected, what);
    CHECK_AT(out.guardsIntact(), what);
    Output<float> exact(n, 1);
    type.sum(pointers.data(), factors, count, exact.data(), n);
    CHECK_SAME_BITS(exact.values(), sums, what);
    CHECK_AT(exact.guardsIntact(), what);
  });
}

// Only results of at least 2^18 values that begin at a cache line use
// non-temporal stores. One of the 16 offsets gives such a beginning.
void longArraysHaveTheSameBits(const Type& type) {
  constexpr size_t kLong = (size_t(1) << 18) + 5;
  const float factors[] = {0.5f, 0.25f};
  const auto a = encoded(type, kPatterns[8], kLong, 1);
  const auto b = encoded(type, kPatterns[9], kLong, 2);
  const uint16_t* const in[] = {a.data(), b.data()};
  std::vector<float> sums(kLong), decoded(kLong);
  for (size_t i = 0; i < kLong; ++i) {
    decoded[i] = type.value(a[i]) * factors[0];
    sums[i] = decoded[i] + type.value(b[i]) * factors[1];
  }
  forEachLevel([&](const std::string& level) {
    for (size_t offset = 0; offset < 16; ++offset) {
      Output<float> out(kLong, offset);
      type.sum(in, factors, 2, out.data(), kLong);
      CHECK_SAME_BITS(out.values(), sums, level + " " + type.name);
      type.decode(a.data(), out.data(), kLong, factors[0]);
      CHECK_SAME_BITS(out.values(), decoded, level + " " + type.name);
      CHECK_AT(out.guardsIntact(), level + " " + type.name);
    }
  });
}

void decodeAppliesTheFactor(const Type& type, const Case& c) {
  std::vector<uint16_t> in;
  std::vector<float> expected;
  for (const float value : c.x) {
    in.push_back(type.nearest(value * type.scale));
    expected.push_back(type.value(in.back()) * 0.7f);
  }
  const Input<uint16_t> input(in, c.offset);
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + type.name + " " + c.name;
    Output<float> out(c.n, c.offset);
    type.decode(input.data(), out.data(), c.n, 0.7f);
    CHECK_SAME_BITS(out.values(), expected, what);
    CHECK_AT(out.guardsIntact(), what);
  });
}

void errorIsBounded() {
  const std::vector<float> x = make(kPatterns[8], 100003, 5);
  std::vector<uint16_t> half(x.size()), bfloat(x.size());
  encodeHalf(x.data(), nullptr, half.data(), x.size(), 1);
  encodeBfloat16(x.data(), nullptr, bfloat.data(), x.size());
  float worst_half = 0, worst_bfloat = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::fabs(x[i]) >= 0x1p-14f) {
      const auto error = [&](float y) { return std::fabs(y / x[i] - 1); };
      worst_half = std::max(worst_half, error(valueOfHalf(half[i])));
      worst_bfloat = std::max(worst_bfloat, error(valueOfBfloat16(bfloat[i])));
    }
  }
  // The largest relative error is half of the spacing: 2^-11 and 2^-8.
  CHECK(worst_half <= 0x1p-11f && worst_half > 0x1p-12f);
  CHECK(worst_bfloat <= 0x1p-8f && worst_bfloat > 0x1p-9f);
}

} // namespace

int main() {
  announceLevels();
  const std::vector<float> dense = denseFloats();
  for (const Type& type : kTypes) {
    every16BitValueDecodes(type);
    floatsEncodeToNearest(type, dense);
    forEachCase([&](const Case& c) {
      encodesWithoutFeedback(type, c);
      feedbackKeepsTheRoundingError(type, c);
      decodeAppliesTheFactor(type, c);
    });
    for (const size_t n : kSizes) {
      for (const int count : {0, 1, 2, 3, 5}) {
        reduceSumsInOrder(type, n, count);
      }
    }
    longArraysHaveTheSameBits(type);
  }
  errorIsBounded();
  return check::report();
}
