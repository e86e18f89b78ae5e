// Plain loops over blocks that stay in the first cache: the compiler makes
// vectors of them.
#include <cstring>
#include <type_traits>

#include "kernels/combine_table.h"
#include "kernels/simd/half.h"
#include "kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

constexpr size_t kBlock = 1024;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
  static constexpr bool kMean = false;
};
struct Mean : Sum {
  static constexpr bool kMean = true;
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a > b ? a : b;
  }
  static constexpr bool kMean = false;
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return a < b ? a : b;
  }
  static constexpr bool kMean = false;
};

// What is stored as itself. Integers are added unsigned: overflow wraps.
template <class T, class Arithmetic>
struct Plain {
  using Stored = T;
  using Held = Arithmetic;
  static void load(const T* in, Held* out, size_t n) {
    std::memcpy(out, in, n * sizeof(T));
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

struct Half {
  using Stored = uint16_t;
  using Held = float;
  static void load(const uint16_t* in, float* out, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      COMMPROF_SIMD_LEVEL::store(out + i, loadHalf(in + i));
    }
    for (; i < n; ++i) {
      out[i] = floatFromHalf(in[i]);
    }
  }
  static void store(const float* in, uint16_t* out, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      storeHalf(out + i, COMMPROF_SIMD_LEVEL::load(in + i));
    }
    for (; i < n; ++i) {
      out[i] = halfFromFloat(in[i]);
    }
  }
  static float mean(float sum, int count) {
    return sum * (1.0f / float(count));
  }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Held = float;
  static void load(const uint16_t* in, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bits = uint32_t(in[i]) << 16;
      std::memcpy(out + i, &bits, sizeof bits);
    }
  }
  static void store(const float* in, uint16_t* out, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      uint32_t bits;
      std::memcpy(&bits, in + i, sizeof bits);
      const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      out[i] = uint16_t(nan ? (bits >> 16 | 0x40u) : (rounded >> 16));
    }
  }
  static float mean(float sum, int count) {
    return sum * (1.0f / float(count));
  }
};

template <class Type, class Op>
void run(const std::byte* const* in, int count, std::byte* out, size_t n) {
  using Stored = typename Type::Stored;
  using Held = typename Type::Held;
  Held sum[kBlock];
  Held next[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t m = n - begin < kBlock ? n - begin : kBlock;
    const auto at = [begin, in](int w) {
      return reinterpret_cast<const Stored*>(in[w]) + begin;
    };
    Type::load(at(0), sum, m);
    for (int w = 1; w < count; ++w) {
      Type::load(at(w), next, m);
      for (size_t i = 0; i < m; ++i) {
        sum[i] = Op::apply(sum[i], next[i]);
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

#define COMMPROF_ALL(Type) \
  {run<Type, Sum>, run<Type, Mean>, run<Type, Max>, run<Type, Min>}
// Sums of integers wrap, which takes unsigned arithmetic; comparing needs the
// sign.
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
    COMMPROF_ALL(Half),
    COMMPROF_ALL(Bfloat16),
    COMMPROF_INTEGER(int32_t, uint32_t),
    COMMPROF_INTEGER(int64_t, uint64_t),
}};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
