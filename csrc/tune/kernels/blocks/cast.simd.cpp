#include "tune/kernels/blocks/block_tables.h"
#include "tune/kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

// Holds value * scale as binary16. The inverse of the scale is exact, because
// the scale is a power of two.
struct Half : HalfBits {
  explicit Half(float scale) : scale_(set1(scale)), inverse_(set1(1 / scale)) {}

  void encode(uint16_t* out, F32 v) const {
    write(out, mul(v, scale_));
  }
  F32 decode(const uint16_t* in) const {
    return mul(read(in), inverse_);
  }

 private:
  F32 scale_, inverse_;
};

struct Bfloat16 : Bfloat16Bits {
  void encode(uint16_t* out, F32 v) const {
    write(out, v);
  }
  F32 decode(const uint16_t* in) const {
    return read(in);
  }
};

template <bool kFeedback, class Format>
inline void encode16(
    const Format& format,
    const float* x,
    float* residual,
    uint16_t* out) {
  F32 v = load(x);
  if constexpr (kFeedback) {
    v = add(v, load(residual));
  }
  format.encode(out, v);
  if constexpr (kFeedback) {
    store(residual, sub(v, format.decode(out)));
  }
}

template <bool kFeedback, class Format>
void encodeRange(
    const Format& format,
    const float* x,
    float* residual,
    uint16_t* out,
    size_t begin,
    size_t end) {
  size_t i = begin;
  for (; i + 16 <= end; i += 16) {
    float* r = kFeedback ? residual + i : nullptr;
    encode16<kFeedback>(format, x + i, r, out + i);
  }
  if (i == end) {
    return;
  }
  Padded<float, 16> last_x, last_residual;
  Padded<uint16_t, 16> last_out;
  last_x.copyFrom(x + i, end - i);
  if constexpr (kFeedback) {
    last_residual.copyFrom(residual + i, end - i);
  }
  encode16<kFeedback>(
      format, last_x.values, last_residual.values, last_out.values);
  last_out.copyTo(out + i, end - i);
  if constexpr (kFeedback) {
    last_residual.copyTo(residual + i, end - i);
  }
}

template <class Format>
void encode(
    const Format& format,
    const float* x,
    float* residual,
    uint16_t* out,
    size_t begin,
    size_t end) {
  if (residual != nullptr) {
    encodeRange<true>(format, x, residual, out, begin, end);
  } else {
    encodeRange<false>(format, x, residual, out, begin, end);
  }
}

template <class Format, bool kStreams>
void decodeTo(
    const uint16_t* in,
    float* out,
    float factor,
    size_t begin,
    size_t end) {
  const F32 factors = set1(factor);
  size_t i = begin;
  for (; i + 16 <= end; i += 16) {
    put<kStreams>(out + i, mul(Format::read(in + i), factors));
  }
  if constexpr (kStreams) {
    streamed();
  }
  if (i == end) {
    return;
  }
  Padded<uint16_t, 16> last_in;
  Padded<float, 16> last_out;
  last_in.copyFrom(in + i, end - i);
  store(last_out.values, mul(Format::read(last_in.values), factors));
  last_out.copyTo(out + i, end - i);
}

template <class Format>
void decode(
    const uint16_t* in,
    float* out,
    float factor,
    bool streams,
    size_t begin,
    size_t end) {
  const auto chosen =
      streams ? decodeTo<Format, true> : decodeTo<Format, false>;
  chosen(in, out, factor, begin, end);
}

// Result formats of a sum: rounded to 16 bits, or exact fp32.
template <class Format>
struct Rounded : Format {
  using Value = uint16_t;
  using Last = Rounded; // for the last values, which pass through a buffer
  static void finish() {}
};
template <bool kStreams>
struct Exact {
  using Value = float;
  using Last = Exact<false>;
  static void write(float* out, F32 v) {
    put<kStreams>(out, v);
  }
  static void finish() {
    if constexpr (kStreams) {
      streamed();
    }
  }
};

template <class Format, class In>
inline F32 sum16(const In& in, const float* factors, int count) {
  F32 sum = mul(Format::read(in(0)), set1(factors[0]));
  for (int w = 1; w < count; ++w) {
    sum = add(sum, mul(Format::read(in(w)), set1(factors[w])));
  }
  return sum;
}

template <class Format, class Result>
void sumTo(
    const uint16_t* const* in,
    const float* factors,
    int count,
    typename Result::Value* out,
    size_t begin,
    size_t end) {
  if (count <= 0) {
    std::memset(out + begin, 0, (end - begin) * sizeof *out);
    return;
  }
  size_t i = begin;
  for (; i + 16 <= end; i += 16) {
    const auto here = [&](int w) { return in[w] + i; };
    Result::write(out + i, sum16<Format>(here, factors, count));
  }
  Result::finish();
  if (i == end) {
    return;
  }
  Padded<uint16_t, 16> last_in;
  Padded<typename Result::Value, 16> last_out;
  const auto padded = [&](int w) {
    last_in.copyFrom(in[w] + i, end - i);
    return last_in.values;
  };
  Result::Last::write(last_out.values, sum16<Format>(padded, factors, count));
  last_out.copyTo(out + i, end - i);
}

template <class Format>
void sum(
    const uint16_t* const* in,
    const float* factors,
    int count,
    float* out,
    bool streams,
    size_t begin,
    size_t end) {
  const auto chosen =
      streams ? sumTo<Format, Exact<true>> : sumTo<Format, Exact<false>>;
  chosen(in, factors, count, out, begin, end);
}

void encodeHalf(
    const float* x,
    float* residual,
    uint16_t* out,
    float scale,
    size_t begin,
    size_t end) {
  encode(Half(scale), x, residual, out, begin, end);
}

void encodeBfloat16(
    const float* x,
    float* residual,
    uint16_t* out,
    size_t begin,
    size_t end) {
  encode(Bfloat16(), x, residual, out, begin, end);
}

} // namespace

const CastTable castTable = {
    encodeHalf,
    decode<Half>,
    sumTo<Half, Rounded<Half>>,
    sum<Half>,
    encodeBfloat16,
    decode<Bfloat16>,
    sumTo<Bfloat16, Rounded<Bfloat16>>,
    sum<Bfloat16>,
};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
