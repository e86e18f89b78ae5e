#include "tune/kernels/blocks/block_formats.h"
#include "tune/kernels/blocks/block_tables.h"
#include "tune/kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

template <class Format, bool kFeedback>
void encodeRange(
    const float* x,
    float* residual,
    typename Format::Byte* out,
    float* scales,
    size_t begin,
    size_t end) {
  constexpr size_t kValues = Format::kValues;
  size_t block = begin / kValues;
  while (block < end / kValues) {
    const size_t left = end / kValues - block;
    const size_t count = left < kTogether ? left : kTogether;
    const size_t first = block * kValues;
    encodeBlocks<Format, kFeedback>(
        x + first,
        kFeedback ? residual + first : nullptr,
        out + block * Format::kBytes,
        scales + block,
        count);
    block += count;
  }
  const size_t first = block * kValues;
  if (first >= end) {
    return;
  }
  Padded<float, kValues> last_x, last_residual;
  Padded<typename Format::Byte, Format::kBytes> last_out;
  last_x.copyFrom(x + first, end - first);
  if constexpr (kFeedback) {
    last_residual.copyFrom(residual + first, end - first);
  }
  encodeBlocks<Format, kFeedback>(
      last_x.values, last_residual.values, last_out.values, scales + block, 1);
  last_out.copyTo(out + block * Format::kBytes, Format::bytes(end - first));
  if constexpr (kFeedback) {
    last_residual.copyTo(residual + first, end - first);
  }
}

template <class Format>
void encode(
    const float* x,
    float* residual,
    typename Format::Byte* out,
    float* scales,
    size_t begin,
    size_t end) {
  if (residual != nullptr) {
    encodeRange<Format, true>(x, residual, out, scales, begin, end);
  } else {
    encodeRange<Format, false>(x, nullptr, out, scales, begin, end);
  }
}

template <class Format, bool kStreams>
inline void decodeBlock(
    const typename Format::Byte* in,
    float scale,
    float* out) {
  const F32 scales = set1(scale);
  for (size_t i = 0; i < Format::kValues; i += 16) {
    put<kStreams>(out + i, mul(toFloat(Format::read(in, i)), scales));
  }
}

template <class Format, bool kStreams>
void decodeTo(
    const typename Format::Byte* in,
    const float* scales,
    float* out,
    float factor,
    size_t begin,
    size_t end) {
  constexpr size_t kValues = Format::kValues;
  size_t block = begin / kValues;
  for (; (block + 1) * kValues <= end; ++block) {
    decodeBlock<Format, kStreams>(
        in + block * Format::kBytes,
        scales[block] * factor,
        out + block * kValues);
  }
  if constexpr (kStreams) {
    streamed();
  }
  const size_t first = block * kValues;
  if (first >= end) {
    return;
  }
  Padded<typename Format::Byte, Format::kBytes> last_in;
  Padded<float, kValues> last_out;
  last_in.copyFrom(in + block * Format::kBytes, Format::bytes(end - first));
  decodeBlock<Format, false>(
      last_in.values, scales[block] * factor, last_out.values);
  last_out.copyTo(out + first, end - first);
}

template <class Format>
void decode(
    const typename Format::Byte* in,
    const float* scales,
    float* out,
    float factor,
    bool streams,
    size_t begin,
    size_t end) {
  const auto chosen =
      streams ? decodeTo<Format, true> : decodeTo<Format, false>;
  chosen(in, scales, out, factor, begin, end);
}

inline float trusted(float scale) {
  return scale >= 0 && scale < floatFromBits(0x7f800000) ? scale : 0;
}

template <class Format, bool kStreams, class BytesOf, class ScaleOf>
inline void sumBlock(
    const BytesOf& bytesOf,
    const ScaleOf& scaleOf,
    int count,
    float factor,
    float* out) {
  constexpr size_t kStep = 64;
  for (size_t i = 0; i < Format::kValues; i += kStep) {
    F32 sums[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
    for (int w = 0; w < count; ++w) {
      const F32 scales = set1(trusted(scaleOf(w)));
      const typename Format::Byte* in = bytesOf(w);
      for (size_t part = 0; part < 4; ++part) {
        const I32 integers = Format::read(in, i + part * 16);
        sums[part] = add(sums[part], mul(toFloat(integers), scales));
      }
    }
    for (size_t part = 0; part < 4; ++part) {
      put<kStreams>(out + i + part * 16, mul(sums[part], set1(factor)));
    }
  }
}

template <class Format, bool kStreams>
void sumTo(
    const typename Format::Byte* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    size_t begin,
    size_t end) {
  constexpr size_t kValues = Format::kValues, kBytes = Format::kBytes;
  size_t block = begin / kValues;
  const auto scaleOf = [&](int w) { return scales[w][block]; };
  for (; block < end / kValues; ++block) {
    const auto bytesOf = [&](int w) { return in[w] + block * kBytes; };
    float* const to = out + block * kValues;
    sumBlock<Format, kStreams>(bytesOf, scaleOf, count, factor, to);
  }
  if constexpr (kStreams) {
    streamed();
  }
  const size_t left = end - block * kValues;
  if (left == 0) {
    return;
  }
  Padded<typename Format::Byte, kBytes> last_in;
  Padded<float, kValues> last_out;
  const auto padded = [&](int w) {
    last_in.copyFrom(in[w] + block * kBytes, Format::bytes(left));
    return last_in.values;
  };
  sumBlock<Format, false>(padded, scaleOf, count, factor, last_out.values);
  last_out.copyTo(out + block * kValues, left);
}

template <class Format>
void sum(
    const typename Format::Byte* const* in,
    const float* const* scales,
    int count,
    float factor,
    float* out,
    bool streams,
    size_t begin,
    size_t end) {
  const auto chosen = streams ? sumTo<Format, true> : sumTo<Format, false>;
  chosen(in, scales, count, factor, out, begin, end);
}

template <class Format>
void reduce(
    const typename Format::Byte* const* in,
    const float* const* scales,
    int count,
    float factor,
    typename Format::Byte* out,
    float* out_scales,
    size_t begin,
    size_t end) {
  constexpr size_t kValues = Format::kValues, kBytes = Format::kBytes;
  float sums[kTogether * kValues];
  size_t block = begin / kValues;
  const auto scaleOf = [&](int w) { return scales[w][block]; };
  while (block < end / kValues) {
    const size_t first = block;
    for (; block < end / kValues && block < first + kTogether; ++block) {
      const auto bytesOf = [&](int w) { return in[w] + block * kBytes; };
      float* to = sums + (block - first) * kValues;
      sumBlock<Format, false>(bytesOf, scaleOf, count, factor, to);
    }
    encodeBlocks<Format, false>(
        sums, nullptr, out + first * kBytes, out_scales + first, block - first);
  }
  if (block * kValues >= end) {
    return;
  }
  const size_t bytes = Format::bytes(end - block * kValues);
  Padded<typename Format::Byte, kBytes> last_in, last_out;
  const auto padded = [&](int w) {
    last_in.copyFrom(in[w] + block * kBytes, bytes);
    return last_in.values;
  };
  sumBlock<Format, false>(padded, scaleOf, count, factor, sums);
  encodeBlocks<Format, false>(
      sums, nullptr, last_out.values, out_scales + block, 1);
  last_out.copyTo(out + block * kBytes, bytes);
}

} // namespace

const Int8Table int8Table = {
    encode<Int8>,
    decode<Int8>,
    reduce<Int8>,
    sum<Int8>,
};
const Int4Table int4Table = {
    encode<Int4>,
    decode<Int4>,
    reduce<Int4>,
    sum<Int4>,
};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
