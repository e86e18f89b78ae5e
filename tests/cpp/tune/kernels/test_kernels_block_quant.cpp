#include <limits>

#include "kernel_cases.h"
#include "tune/kernels/blocks/block_quant.h"

using namespace commprof::kernels;
using namespace kernel_cases;

namespace {

struct Width {
  const char* name;
  size_t block;
  int largest;
  size_t (*bytes)(size_t n);
  void (*encode)(const float*, float*, int8_t*, float*, size_t);
  void (*decode)(const int8_t*, const float*, float*, size_t, float);
  void (*reduce)(
      const int8_t* const*,
      const float* const*,
      int,
      float,
      int8_t*,
      float*,
      size_t);
  void (*sum)(
      const int8_t* const*,
      const float* const*,
      int,
      float,
      float*,
      size_t);
};

uint8_t* unsignedBytes(int8_t* p) {
  return reinterpret_cast<uint8_t*>(p);
}
const uint8_t* unsignedBytes(const int8_t* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

std::vector<const uint8_t*> unsignedArrays(const int8_t* const* in, int count) {
  std::vector<const uint8_t*> pointers;
  for (int w = 0; w < count; ++w) {
    pointers.push_back(unsignedBytes(in[w]));
  }
  return pointers;
}

void sumInt4Bytes(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t n) {
  const auto pointers = unsignedArrays(in, count);
  sumInt4(pointers.data(), scales, count, factor, out, n);
}

void reduceInt4Bytes(
    const int8_t* const* in,
    const float* const* scales,
    int count,
    float factor,
    int8_t* out,
    float* out_scales,
    size_t n) {
  const auto pointers = unsignedArrays(in, count);
  reduceInt4(
      pointers.data(),
      scales,
      count,
      factor,
      unsignedBytes(out),
      out_scales,
      n);
}

const Width kWidths[] = {
    {"int8",
     kInt8Block,
     127,
     [](size_t n) { return n; },
     encodeInt8,
     decodeInt8,
     reduceInt8,
     sumInt8},
    {"int4",
     kInt4Block,
     7,
     int4Bytes,
     [](const float* x, float* residual, int8_t* out, float* scales, size_t n) {
       encodeInt4(x, residual, unsignedBytes(out), scales, n);
     },
     [](const int8_t* in, const float* scales, float* out, size_t n, float f) {
       decodeInt4(unsignedBytes(in), scales, out, n, f);
     },
     reduceInt4Bytes,
     sumInt4Bytes},
};

struct Encoded {
  std::vector<int8_t> bytes;
  std::vector<float> scales;
  std::vector<float> decoded;
};

float nearestBfloat16(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

Encoded reference(const Width& width, const std::vector<float>& x) {
  Encoded out;
  const size_t n = x.size();
  bool in_range = true;
  out.bytes.resize(width.bytes(n));
  for (size_t i = 0; i < n; ++i) {
    const size_t first = i / width.block * width.block;
    if (i == first) {
      float max_abs = 0;
      for (size_t j = i; j < std::min(n, i + width.block); ++j) {
        max_abs = std::max(max_abs, std::fabs(x[j]));
      }
      const float exact = max_abs / float(width.largest);
      const float scale = width.largest == 127 ? nearestBfloat16(exact) : exact;
      out.scales.push_back(std::isnormal(exact) ? scale : 0);
    }
    const float scale = out.scales.back();
    const int value = scale == 0 ? 0 : int(std::nearbyint(x[i] * (1 / scale)));
    in_range = in_range && std::abs(value) <= width.largest;
    out.decoded.push_back(float(value) * scale);
    if (width.largest == 127) {
      out.bytes[i] = int8_t(value);
    } else {
      const size_t place = i - first;
      int8_t& byte = out.bytes[first / 2 + place % 32];
      byte = int8_t(byte | (value & 15) << (place < 32 ? 0 : 4));
    }
  }
  CHECK(in_range);
  return out;
}

std::vector<float> sumOf(const std::vector<float>& a, std::vector<float> b) {
  for (size_t i = 0; i < a.size(); ++i) {
    b[i] = a[i] + b[i];
  }
  return b;
}

void checkEncode(const Width& width, const Case& c, bool feedback) {
  const std::vector<float> wanted = feedback ? sumOf(c.x, c.residual) : c.x;
  const Encoded expected = reference(width, wanted);
  std::vector<float> lost(c.n);
  for (size_t i = 0; i < c.n; ++i) {
    lost[i] = wanted[i] - expected.decoded[i];
  }
  const Input<float> x(c.x, c.offset);
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + width.name + " " + c.name;
    Output<int8_t> out(expected.bytes.size(), c.offset);
    Output<float> scales(expected.scales.size(), c.offset);
    Output<float> residual(c.residual, c.offset);
    width.encode(
        x.data(),
        feedback ? residual.data() : nullptr,
        out.data(),
        scales.data(),
        c.n);
    CHECK_SAME_BITS(out.values(), expected.bytes, what);
    CHECK_SAME_BITS(scales.values(), expected.scales, what + ", scales");
    CHECK_SAME_BITS(
        residual.values(), feedback ? lost : c.residual, what + ", residual");
    CHECK_AT(out.guardsIntact() && scales.guardsIntact(), what);
    CHECK_AT(residual.guardsIntact(), what);
  });
}

void checkDecode(const Width& width, const Case& c) {
  const Encoded in = reference(width, c.x);
  const Input<int8_t> bytes(in.bytes, c.offset);
  const Input<float> scales(in.scales, c.offset);
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + width.name + " " + c.name;
    Output<float> out(c.n, c.offset);
    width.decode(bytes.data(), scales.data(), out.data(), c.n, 1);
    CHECK_SAME_BITS(out.values(), in.decoded, what);
    CHECK_AT(out.guardsIntact(), what);
    // The error is at most half a step. If the scale would be denormal, the
    // error is the whole value.
    bool close = true;
    for (size_t i = 0; i < c.n; ++i) {
      const double step = in.scales[i / width.block];
      const double bound =
          step == 0 ? width.largest * 0x1p-126 : step / 2 * (1 + 0x1p-14);
      close =
          close && std::fabs(double(c.x[i]) - double(in.decoded[i])) <= bound;
    }
    CHECK_AT(close, what);
    width.decode(bytes.data(), scales.data(), out.data(), c.n, 0.25f);
    std::vector<float> quarter = in.decoded;
    for (float& value : quarter) {
      value *= 0.25f;
    }
    // A quarter of the smallest values is not exact.
    if (c.name.find("smallest") == std::string::npos) {
      CHECK_SAME_BITS(out.values(), quarter, what + " / 4");
    }
  });
}

void checkReduce(const Width& width, size_t n, int count) {
  std::vector<Input<int8_t>> bytes;
  std::vector<Input<float>> scales;
  std::vector<float> sums(n, 0.0f);
  for (int w = 0; w < count; ++w) {
    const Encoded in = reference(width, make(kPatterns[8 + w % 2], n, w + 1));
    bytes.emplace_back(in.bytes, w);
    scales.emplace_back(in.scales, w);
    sums = sumOf(sums, in.decoded);
  }
  for (float& sum : sums) {
    sum *= 0.3f;
  }
  const Encoded expected = reference(width, sums);
  std::vector<const int8_t*> in;
  std::vector<const float*> in_scales;
  for (int w = 0; w < count; ++w) {
    in.push_back(bytes[w].data());
    in_scales.push_back(scales[w].data());
  }
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + width.name + " " +
        std::to_string(n) + " x " + std::to_string(count);
    Output<int8_t> out(expected.bytes.size(), 3);
    Output<float> out_scales(expected.scales.size(), 1);
    width.reduce(
        in.data(),
        in_scales.data(),
        count,
        0.3f,
        out.data(),
        out_scales.data(),
        n);
    CHECK_SAME_BITS(out.values(), expected.bytes, what);
    CHECK_SAME_BITS(out_scales.values(), expected.scales, what);
    CHECK_AT(out.guardsIntact() && out_scales.guardsIntact(), what);
    Output<float> exact(n, 1);
    width.sum(in.data(), in_scales.data(), count, 0.3f, exact.data(), n);
    CHECK_SAME_BITS(exact.values(), sums, what);
    CHECK_AT(exact.guardsIntact(), what);
  });
}

// Only results of at least 2^18 values that begin at a cache line use
// non-temporal stores. One of the 16 offsets gives such a beginning.
void longArraysHaveTheSameBits(const Width& width) {
  constexpr size_t kLong = (size_t(1) << 18) + 5;
  const Encoded a = reference(width, make(kPatterns[8], kLong, 1));
  const Encoded b = reference(width, make(kPatterns[9], kLong, 2));
  const int8_t* const in[] = {a.bytes.data(), b.bytes.data()};
  const float* const scales[] = {a.scales.data(), b.scales.data()};
  std::vector<float> expected = sumOf(a.decoded, b.decoded);
  for (float& value : expected) {
    value *= 0.5f;
  }
  forEachLevel([&](const std::string& level) {
    for (size_t offset = 0; offset < 16; ++offset) {
      Output<float> out(kLong, offset);
      width.sum(in, scales, 2, 0.5f, out.data(), kLong);
      CHECK_SAME_BITS(out.values(), expected, level + " " + width.name);
      width.decode(a.bytes.data(), a.scales.data(), out.data(), kLong, 1);
      CHECK_SAME_BITS(out.values(), a.decoded, level + " " + width.name);
      CHECK_AT(out.guardsIntact(), level + " " + width.name);
    }
  });
}

void reduceReadsBadScalesAsZero(const Width& width) {
  const size_t n = 5 * width.block;
  Encoded in = reference(width, make(kPatterns[8], n, 3));
  const float kept = in.scales[4];
  in.scales = {NAN, INFINITY, -INFINITY, -1.0f, kept};
  const int8_t* bytes[] = {in.bytes.data()};
  const float* scales[] = {in.scales.data()};
  forEachLevel([&](const std::string& level) {
    std::vector<int8_t> out(in.bytes.size(), 99);
    std::vector<float> out_scales(5, 99.0f);
    width.reduce(bytes, scales, 1, 1, out.data(), out_scales.data(), n);
    const size_t fifth = out.size() / 5;
    CHECK_AT(
        std::count(out.begin(), out.end() - fifth, 0) == long(4 * fifth),
        level + " " + width.name);
    for (int block = 0; block < 4; ++block) {
      CHECK_EQ(out_scales[block], 0.0f);
    }
    CHECK(std::fabs(out_scales[4] / kept - 1) < 1e-6f);
    CHECK(std::equal(out.end() - fifth, out.end(), in.bytes.end() - fifth));
  });
}

void overflowGivesANonfiniteScale(const Width& width) {
  const size_t n = width.block;
  Encoded in = reference(width, std::vector<float>(n, 3e38f));
  const int8_t* bytes[] = {in.bytes.data(), in.bytes.data()};
  const float* scales[] = {in.scales.data(), in.scales.data()};
  forEachLevel([&](const std::string&) {
    std::vector<int8_t> out(in.bytes.size());
    float scale = 0;
    width.reduce(bytes, scales, 2, 1, out.data(), &scale, n);
    CHECK(!std::isfinite(scale));
  });
}

} // namespace

int main() {
  announceLevels();
  for (const Width& width : kWidths) {
    forEachCase([&](const Case& c) {
      checkEncode(width, c, false);
      checkEncode(width, c, true);
      checkDecode(width, c);
    });
    for (const size_t n : kSizes) {
      for (const int count : {0, 1, 2, 5}) {
        checkReduce(width, n, count);
      }
    }
    longArraysHaveTheSameBits(width);
    reduceReadsBadScalesAsZero(width);
    overflowGivesANonfiniteScale(width);
  }
  return check::report();
}
