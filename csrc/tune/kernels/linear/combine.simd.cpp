// fp32, fp64 and integers are reduced in registers. 16-bit types, means of
// integers and the last values of an array are reduced in blocks that fit into
// the L1 cache.
#include <cstring>
#include <type_traits>

#include "tune/kernels/linear/linear_tables.h"
#include "tune/kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

constexpr size_t kBlock = 1024;

struct Sum {
  template <class T>
  static void apply(T& a, const T& b) {
    a = a + b;
  }
  static constexpr bool kMean = false;
};
struct Mean : Sum {
  static constexpr bool kMean = true;
};
struct Max {
  template <class T>
  static void apply(T& a, const T& b) {
    a = a > b ? a : b;
  }
  static constexpr bool kMean = false;
};
struct Min {
  template <class T>
  static void apply(T& a, const T& b) {
    a = a < b ? a : b;
  }
  static constexpr bool kMean = false;
};

// Types that are reduced in their stored form. Integers are added as unsigned
// numbers, so that overflow wraps.
template <class T, class Arithmetic>
struct Plain {
  using Stored = T;
  using Held = Arithmetic;
  // True if runLines() supports Op. CPUs cannot divide vectors of integers.
  template <class Op>
  static constexpr bool inLines() {
    return std::is_floating_point<T>::value || !Op::kMean;
  }
  static const Held* load(const T* in, Held*, size_t) {
    return reinterpret_cast<const Held*>(in); // signed and unsigned may alias
  }
  static void store(const Held* in, T* out, size_t n) {
    std::memcpy(out, in, n * sizeof(T));
  }
  static Held mean(Held sum, int count) {
    if constexpr (std::is_floating_point<T>::value) {
      return sum * (T(1) / T(count));
    } else {
      return Held(T(sum) / T(count));
    }
  }
};

// 16-bit formats are held as fp32.
template <class Bits>
struct Narrow {
  using Stored = uint16_t;
  using Held = float;
  template <class Op>
  static constexpr bool inLines() {
    return false;
  }
  static const float* load(const uint16_t* in, float* out, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      COMMPROF_SIMD_LEVEL::store(out + i, Bits::read(in + i));
    }
    if (i < n) {
      Padded<uint16_t, 16> last;
      last.copyFrom(in + i, n - i);
      // kBlock is a multiple of 16, so there is room after the last values.
      COMMPROF_SIMD_LEVEL::store(out + i, Bits::read(last.values));
    }
    return out;
  }
  static void store(const float* in, uint16_t* out, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      Bits::write(out + i, COMMPROF_SIMD_LEVEL::load(in + i));
    }
    if (i < n) {
      Padded<float, 16> last;
      Padded<uint16_t, 16> rounded;
      last.copyFrom(in + i, n - i);
      Bits::write(rounded.values, COMMPROF_SIMD_LEVEL::load(last.values));
      rounded.copyTo(out + i, n - i);
    }
  }
  static float mean(float sum, int count) {
    return sum * (1.0f / float(count));
  }
};

template <class Held>
struct Line {
  typedef Held Vector __attribute__((vector_size(64)));

  void read(const std::byte* from) {
    std::memcpy(&values, from, sizeof values);
  }
  void write(std::byte* to) const {
    std::memcpy(to, &values, sizeof values);
  }
  Vector values;
};

template <class Type, class Op>
size_t runLines(
    const std::byte* const* in,
    int count,
    std::byte* out,
    size_t n) {
  using Held = typename Type::Held;
  using OneLine = Line<Held>;
  constexpr size_t kTogether = 4;
  constexpr size_t kBytes = kTogether * sizeof(OneLine);
  const size_t bytes = n * sizeof(Held) / kBytes * kBytes;
  for (size_t at = 0; at < bytes; at += kBytes) {
    OneLine sums[kTogether], next;
    for (size_t j = 0; j < kTogether; ++j) {
      sums[j].read(in[0] + at + j * sizeof(OneLine));
    }
    for (int w = 1; w < count; ++w) {
      for (size_t j = 0; j < kTogether; ++j) {
        next.read(in[w] + at + j * sizeof(OneLine));
        Op::apply(sums[j].values, next.values);
      }
    }
    for (size_t j = 0; j < kTogether; ++j) {
      if constexpr (Op::kMean) {
        sums[j].values = sums[j].values * (Held(1) / Held(count));
      }
      sums[j].write(out + at + j * sizeof(OneLine));
    }
  }
  return bytes / sizeof(Held);
}

// Reduces the values from `from` on in blocks, so that the sum stays in the L1
// cache.
template <class Type, class Op>
void runBlocks(
    const std::byte* const* in,
    int count,
    std::byte* out,
    size_t from,
    size_t n) {
  using Stored = typename Type::Stored;
  using Held = typename Type::Held;
  Held sum[kBlock];
  Held space[kBlock];
  for (size_t begin = from; begin < n; begin += kBlock) {
    const size_t m = n - begin < kBlock ? n - begin : kBlock;
    const auto load = [&](int w) {
      const auto* values = reinterpret_cast<const Stored*>(in[w]) + begin;
      return Type::load(values, space, m);
    };
    std::memcpy(sum, load(0), m * sizeof(Held));
    for (int w = 1; w < count; ++w) {
      const Held* values = load(w);
      for (size_t i = 0; i < m; ++i) {
        Op::apply(sum[i], values[i]);
      }
    }
    if constexpr (Op::kMean) {
      for (size_t i = 0; i < m; ++i) {
        sum[i] = Type::mean(sum[i], count);
      }
    }
    Type::store(sum, reinterpret_cast<Stored*>(out) + begin, m);
  }
}

template <class Type, class Op>
void run(const std::byte* const* in, int count, std::byte* out, size_t n) {
  size_t done = 0;
  if constexpr (Type::template inLines<Op>()) {
    done = runLines<Type, Op>(in, count, out, n);
  }
  runBlocks<Type, Op>(in, count, out, done, n);
}

#define COMMPROF_ALL(Type) \
  {run<Type, Sum>, run<Type, Mean>, run<Type, Max>, run<Type, Min>}
// Sums of integers must wrap, so they need unsigned arithmetic. Comparisons
// need signed numbers.
#define COMMPROF_INTEGER(T, Unsigned) \
  {run<Plain<T, Unsigned>, Sum>,      \
   run<Plain<T, Unsigned>, Mean>,     \
   run<Plain<T, T>, Max>,             \
   run<Plain<T, T>, Min>}
using F32Type = Plain<float, float>;
using F64Type = Plain<double, double>;

} // namespace

const CombineTable combineTable = {{
    COMMPROF_ALL(F32Type),
    COMMPROF_ALL(F64Type),
    COMMPROF_ALL(Narrow<HalfBits>),
    COMMPROF_ALL(Narrow<Bfloat16Bits>),
    COMMPROF_INTEGER(int32_t, uint32_t),
    COMMPROF_INTEGER(int64_t, uint64_t),
}};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
