#include "kernels/block_quant.h"
#include "kernels/block_quant_table.h"
#include "kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

// How the integers of a block stand in memory. write() asks integersAt(i) for
// the values i to i + 15, for each once; read() hands them to take(i,
// integers).
struct Int8 {
  using Byte = int8_t;
  static constexpr size_t kValues = kInt8Block;
  static constexpr size_t kBytes = kInt8Block;
  static constexpr float kLargest = 127;

  template <class IntegersAt>
  static void write(Byte* out, const IntegersAt& integersAt) {
    for (size_t i = 0; i < kValues; i += 16) {
      storeInt8(out + i, integersAt(i));
    }
  }
  template <class Take>
  static void read(const Byte* in, const Take& take) {
    for (size_t i = 0; i < kValues; i += 16) {
      take(i, loadInt8(in + i));
    }
  }
  static size_t bytes(size_t values) {
    return values;
  }
};

struct Int4 {
  using Byte = uint8_t;
  static constexpr size_t kValues = kInt4Block;
  static constexpr size_t kBytes = kInt4Block / 2;
  static constexpr float kLargest = 7;

  template <class IntegersAt>
  static void write(Byte* out, const IntegersAt& integersAt) {
    for (size_t i = 0; i < kBytes; i += 16) {
      const I32 low = bitAnd(integersAt(i), set1(15));
      const I32 high = shiftLeft<4>(integersAt(i + kBytes));
      storeInt8(reinterpret_cast<int8_t*>(out + i), bitOr(low, high));
    }
  }
  template <class Take>
  static void read(const Byte* in, const Take& take) {
    for (size_t i = 0; i < kBytes; i += 16) {
      const I32 both = loadInt8(reinterpret_cast<const int8_t*>(in + i));
      take(i, shiftRightSigned<28>(shiftLeft<28>(both)));
      take(i + kBytes, shiftRightSigned<4>(both));
    }
  }
  static size_t bytes(size_t) {
    return kBytes;
  }
};

inline I32 magnitudes(F32 v) {
  return bitAnd(asInt(v), set1(0x7fffffff));
}

inline float floatFromBits(int32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Writes the block whose values are at `values` and returns its scale. Where
// kFeedback, what is lost of each value stands at `values` afterwards.
template <class Format, bool kFeedback, class Values>
inline float writeBlock(
    Values* values,
    I32 largest,
    typename Format::Byte* out) {
  constexpr float kSmallestNormal = 0x1p-126f;
  const float exact = floatFromBits(maxLanes(largest)) / Format::kLargest;
  const float scale = exact < kSmallestNormal ? 0 : exact;
  const F32 inverses = set1(scale == 0 ? 0 : 1 / scale);
  const F32 scales = set1(scale);
  Format::write(out, [&](size_t i) {
    const F32 v = load(values + i);
    const I32 integers = roundToInt(mul(v, inverses));
    if constexpr (kFeedback) {
      store(values + i, sub(v, mul(toFloat(integers), scales)));
    }
    return integers;
  });
  return scale;
}

template <class Format>
inline float encodeBlock(const float* x, typename Format::Byte* out) {
  I32 largest = set1(0);
  for (size_t i = 0; i < Format::kValues; i += 16) {
    largest = max(largest, magnitudes(load(x + i)));
  }
  return writeBlock<Format, false>(x, largest, out);
}

template <class Format>
inline float encodeBlockWithFeedback(
    const float* x,
    float* residual,
    typename Format::Byte* out) {
  I32 largest = set1(0);
  for (size_t i = 0; i < Format::kValues; i += 16) {
    const F32 v = add(load(x + i), load(residual + i));
    store(residual + i, v);
    largest = max(largest, magnitudes(v));
  }
  return writeBlock<Format, true>(residual, largest, out);
}

template <class Format>
void encode(
    const float* x,
    float* residual,
    typename Format::Byte* out,
    float* scales,
    size_t begin,
    size_t end) {
  constexpr size_t kValues = Format::kValues;
  const auto encodeOne = [&](const float* from, float* lost, auto* to) {
    return lost != nullptr ? encodeBlockWithFeedback<Format>(from, lost, to)
                           : encodeBlock<Format>(from, to);
  };
  size_t block = begin / kValues;
  for (; (block + 1) * kValues <= end; ++block) {
    const size_t first = block * kValues;
    float* lost = residual != nullptr ? residual + first : nullptr;
    scales[block] = encodeOne(x + first, lost, out + block * Format::kBytes);
  }
  const size_t first = block * kValues;
  if (first >= end) {
    return;
  }
  Padded<float, kValues> last_x, last_residual;
  Padded<typename Format::Byte, Format::kBytes> last_out;
  last_x.copyFrom(x + first, end - first);
  if (residual != nullptr) {
    last_residual.copyFrom(residual + first, end - first);
  }
  float* lost = residual != nullptr ? last_residual.values : nullptr;
  scales[block] = encodeOne(last_x.values, lost, last_out.values);
  last_out.copyTo(out + block * Format::kBytes, Format::bytes(end - first));
  if (residual != nullptr) {
    last_residual.copyTo(residual + first, end - first);
  }
}

template <class Format>
inline void decodeBlock(
    const typename Format::Byte* in,
    float scale,
    float* out) {
  const F32 scales = set1(scale);
  Format::read(in, [&](size_t i, I32 integers) {
    store(out + i, mul(toFloat(integers), scales));
  });
}

template <class Format>
void decode(
    const typename Format::Byte* in,
    const float* scales,
    float* out,
    float factor,
    size_t begin,
    size_t end) {
  constexpr size_t kValues = Format::kValues;
  size_t block = begin / kValues;
  for (; (block + 1) * kValues <= end; ++block) {
    decodeBlock<Format>(
        in + block * Format::kBytes,
        scales[block] * factor,
        out + block * kValues);
  }
  const size_t first = block * kValues;
  if (first >= end) {
    return;
  }
  Padded<typename Format::Byte, Format::kBytes> last_in;
  Padded<float, kValues> last_out;
  last_in.copyFrom(in + block * Format::kBytes, Format::bytes(end - first));
  decodeBlock<Format>(last_in.values, scales[block] * factor, last_out.values);
  last_out.copyTo(out + first, end - first);
}

inline float trusted(float scale) {
  return scale >= 0 && scale < floatFromBits(0x7f800000) ? scale : 0;
}

// bytesOf(w) points to a whole block of encoding w, scaleOf(w) is its scale.
template <class Format, class BytesOf, class ScaleOf>
inline float reduceBlock(
    const BytesOf& bytesOf,
    const ScaleOf& scaleOf,
    int count,
    float factor,
    typename Format::Byte* out) {
  float sums[Format::kValues] = {};
  for (int w = 0; w < count; ++w) {
    const F32 scales = set1(trusted(scaleOf(w)));
    Format::read(bytesOf(w), [&](size_t i, I32 integers) {
      store(sums + i, add(load(sums + i), mul(toFloat(integers), scales)));
    });
  }
  const F32 factors = set1(factor);
  I32 largest = set1(0);
  for (size_t i = 0; i < Format::kValues; i += 16) {
    const F32 v = mul(load(sums + i), factors);
    store(sums + i, v);
    largest = max(largest, magnitudes(v));
  }
  return writeBlock<Format, false>(sums, largest, out);
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
  using Byte = typename Format::Byte;
  size_t block = begin / Format::kValues;
  const auto scaleOf = [&](int w) { return scales[w][block]; };
  for (; (block + 1) * Format::kValues <= end; ++block) {
    const size_t first = block * Format::kBytes;
    const auto bytesOf = [&](int w) { return in[w] + first; };
    out_scales[block] =
        reduceBlock<Format>(bytesOf, scaleOf, count, factor, out + first);
  }
  if (block * Format::kValues >= end) {
    return;
  }
  const size_t first = block * Format::kBytes;
  const size_t bytes = Format::bytes(end - block * Format::kValues);
  Padded<Byte, Format::kBytes> last_in, last_out;
  const auto padded = [&](int w) {
    last_in.copyFrom(in[w] + first, bytes);
    return last_in.values;
  };
  out_scales[block] =
      reduceBlock<Format>(padded, scaleOf, count, factor, last_out.values);
  last_out.copyTo(out + first, bytes);
}

} // namespace

const Int8Table int8Table = {encode<Int8>, decode<Int8>, reduce<Int8>};
const Int4Table int4Table = {encode<Int4>, decode<Int4>, reduce<Int4>};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
