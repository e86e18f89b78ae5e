#include "tune/kernels/linear/low_rank.h"
#include "tune/kernels/linear/linear_tables.h"
#include "tune/kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

constexpr size_t kLanes = 16;
constexpr size_t kRows = 4; // rows processed in one pass over Q

// WholeTile accesses 16 columns. LastTile accesses the last `count` columns.
struct WholeTile {
  F32 get(const float* p) const {
    return load(p);
  }
  void put(float* p, F32 v) const {
    store(p, v);
  }
};
struct LastTile {
  size_t count;

  F32 get(const float* p) const {
    Padded<float, kLanes> part;
    part.copyFrom(p, count);
    return load(part.values);
  }
  void put(float* p, F32 v) const {
    Padded<float, kLanes> part;
    store(part.values, v);
    part.copyTo(p, count);
  }
};

template <class Body>
inline void forTiles(size_t begin, size_t end, const Body& body) {
  size_t col = begin;
  for (; col + kLanes <= end; col += kLanes) {
    body(WholeTile{}, col);
  }
  if (col < end) {
    body(LastTile{end - col}, col);
  }
}

// A rank that is known at compile time, or 0 for any other rank.
template <int kRank>
struct Rank {
  static constexpr int kMost = kRank == 0 ? kMaxRank : kRank;

  static int of(const LowRankShape& shape) {
    return kRank == 0 ? shape.rank : kRank;
  }
};

template <class Body>
inline void withRank(int rank, const Body& body) {
  switch (rank) {
    case 1:
      return body(Rank<1>{});
    case 2:
      return body(Rank<2>{});
    case 4:
      return body(Rank<4>{});
    case 8:
      return body(Rank<8>{});
    default:
      return body(Rank<0>{});
  }
}

template <class R>
inline void projectRow(
    R,
    const LowRankShape& shape,
    const float* gradient,
    float* residual,
    const float* q,
    float* p) {
  const int rank = R::of(shape);
  F32 sums[R::kMost];
  for (int j = 0; j < rank; ++j) {
    sums[j] = set1(0.0f);
  }
  forTiles(0, shape.cols, [&](auto tile, size_t col) {
    const F32 v = add(tile.get(gradient + col), tile.get(residual + col));
    tile.put(residual + col, v);
    for (int j = 0; j < rank; ++j) {
      sums[j] = fma(v, tile.get(q + size_t(j) * shape.cols + col), sums[j]);
    }
  });
  for (int j = 0; j < rank; ++j) {
    p[j] = sumLanes(sums[j]);
  }
}

void projectRows(
    const LowRankShape& shape,
    const float* gradient,
    float* residual,
    const float* q,
    float* p,
    size_t begin_row,
    size_t end_row) {
  withRank(shape.rank, [&](auto rank) {
    for (size_t row = begin_row; row < end_row; ++row) {
      const size_t at = row * shape.cols;
      float* row_p = p + row * size_t(shape.rank);
      projectRow(rank, shape, gradient + at, residual + at, q, row_p);
    }
  });
}

template <size_t kCount, class R>
inline void addRows(
    R,
    const LowRankShape& shape,
    const float* residual,
    const float* p,
    float* q,
    size_t begin_col,
    size_t end_col) {
  const int rank = R::of(shape);
  F32 factors[R::kMost][kCount];
  for (size_t i = 0; i < kCount; ++i) {
    for (int j = 0; j < rank; ++j) {
      factors[j][i] = set1(p[i * size_t(rank) + size_t(j)]);
    }
  }
  forTiles(begin_col, end_col, [&](auto tile, size_t col) {
    F32 v[kCount];
    for (size_t i = 0; i < kCount; ++i) {
      v[i] = tile.get(residual + i * shape.cols + col);
    }
    for (int j = 0; j < rank; ++j) {
      float* at = q + size_t(j) * shape.cols + col;
      F32 sum = tile.get(at);
      for (size_t i = 0; i < kCount; ++i) {
        sum = fma(v[i], factors[j][i], sum);
      }
      tile.put(at, sum);
    }
  });
}

void projectCols(
    const LowRankShape& shape,
    const float* residual,
    const float* p,
    float* q,
    size_t begin_col,
    size_t end_col) {
  const size_t rank = size_t(shape.rank);
  for (size_t j = 0; j < rank; ++j) {
    for (size_t col = begin_col; col < end_col; ++col) {
      q[j * shape.cols + col] = 0.0f;
    }
  }
  withRank(shape.rank, [&](auto fixed) {
    size_t row = 0;
    for (; row + kRows <= shape.rows; row += kRows) {
      const float* from = residual + row * shape.cols;
      const float* factors = p + row * rank;
      addRows<kRows>(fixed, shape, from, factors, q, begin_col, end_col);
    }
    for (; row < shape.rows; ++row) {
      const float* from = residual + row * shape.cols;
      const float* factors = p + row * rank;
      addRows<1>(fixed, shape, from, factors, q, begin_col, end_col);
    }
  });
}

// kSame: q and q_local are the same array.
template <bool kSame, class R>
inline void reconstructRow(
    R,
    const LowRankShape& shape,
    float* out,
    float* residual,
    const float* p,
    const float* q,
    const float* q_local) {
  const int rank = R::of(shape);
  F32 factors[R::kMost];
  for (int j = 0; j < rank; ++j) {
    factors[j] = set1(p[j]);
  }
  forTiles(0, shape.cols, [&](auto tile, size_t col) {
    F32 sum = set1(0.0f), local = set1(0.0f);
    for (int j = 0; j < rank; ++j) {
      const size_t at = size_t(j) * shape.cols + col;
      sum = fma(factors[j], tile.get(q + at), sum);
      if constexpr (!kSame) {
        local = fma(factors[j], tile.get(q_local + at), local);
      }
    }
    tile.put(out + col, sum);
    const F32 sent = kSame ? sum : local;
    tile.put(residual + col, sub(tile.get(residual + col), sent));
  });
}

void reconstruct(
    const LowRankShape& shape,
    float* out,
    float* residual,
    const float* p,
    const float* q,
    const float* q_local,
    size_t begin_row,
    size_t end_row) {
  withRank(shape.rank, [&](auto rank) {
    for (size_t row = begin_row; row < end_row; ++row) {
      const size_t at = row * shape.cols;
      const float* row_p = p + row * size_t(shape.rank);
      if (q == q_local) {
        reconstructRow<true>(
            rank, shape, out + at, residual + at, row_p, q, q_local);
      } else {
        reconstructRow<false>(
            rank, shape, out + at, residual + at, row_p, q, q_local);
      }
    }
  });
}

} // namespace

const LowRankTable lowRankTable = {projectRows, projectCols, reconstruct};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
