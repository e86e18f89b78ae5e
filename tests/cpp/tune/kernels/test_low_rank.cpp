#include "tune/kernels/linear/low_rank.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "kernel_levels.h"
#include "tune/kernels/parallel.h"
#include "tune/kernels/philox.h"

using namespace commprof::kernels;

namespace {

constexpr size_t kGuards = 64;
constexpr float kGuard = 7.0f;

std::vector<float> normals(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  std::generate(out.begin(), out.end(), [&] { return normal(random); });
  return out;
}

std::vector<float> guarded(size_t count) {
  return std::vector<float>(count + kGuards, kGuard);
}

bool guardsIntact(const std::vector<float>& data) {
  return std::all_of(data.end() - long(kGuards), data.end(), [](float x) {
    return x == kGuard;
  });
}

struct Shape {
  size_t rows, cols;
  int rank;
};

struct Run {
  explicit Run(const Shape& shape)
      : gradient(normals(shape.rows * shape.cols, 1)),
        before(normals(shape.rows * shape.cols, 2)),
        q(normals(shape.cols * size_t(shape.rank), 3)),
        sum(before),
        p(guarded(shape.rows * size_t(shape.rank))),
        next_q(guarded(shape.cols * size_t(shape.rank))),
        out(guarded(shape.rows * shape.cols)) {
    sum.resize(out.size(), kGuard);
    projectRows(
        gradient.data(),
        sum.data(),
        shape.rows,
        shape.cols,
        shape.rank,
        q.data(),
        p.data());
    projectCols(
        sum.data(),
        shape.rows,
        shape.cols,
        shape.rank,
        p.data(),
        next_q.data());
    left = sum;
    reconstruct(
        out.data(),
        left.data(),
        shape.rows,
        shape.cols,
        shape.rank,
        p.data(),
        q.data(),
        next_q.data());
  }

  bool operator==(const Run&) const = default;

  std::vector<float> gradient, before, q, sum, p, next_q, out, left;
};

template <typename A, typename B>
bool near(
    float actual,
    size_t count,
    const A& a,
    const B& b,
    double start = 0) {
  double expected = start, magnitude = std::fabs(start);
  for (size_t i = 0; i < count; ++i) {
    expected += a(i) * b(i);
    magnitude += std::fabs(a(i) * b(i));
  }
  // This bound holds for any order of fp32 additions.
  return std::fabs(double(actual) - expected) <=
      magnitude * double(count + 1) * 0x1p-24;
}

bool projectionsAreRight(const Run& run, const Shape& shape) {
  const size_t rank = size_t(shape.rank), cols = shape.cols;
  bool good = true;
  for (size_t i = 0; i < shape.rows * cols; ++i) {
    good = good && run.sum[i] == run.gradient[i] + run.before[i];
  }
  for (size_t j = 0; j < rank; ++j) {
    for (size_t row = 0; row < shape.rows; ++row) {
      good = good &&
          near(
                 run.p[row * rank + j],
                 cols,
                 [&](size_t c) { return run.sum[row * cols + c]; },
                 [&](size_t c) { return run.q[j * cols + c]; });
    }
    for (size_t col = 0; col < cols; ++col) {
      good = good &&
          near(
                 run.next_q[j * cols + col],
                 shape.rows,
                 [&](size_t r) { return run.sum[r * cols + col]; },
                 [&](size_t r) { return run.p[r * rank + j]; });
    }
  }
  return good;
}

bool reconstructionIsRight(const Run& run, const Shape& shape) {
  const size_t rank = size_t(shape.rank), cols = shape.cols;
  bool good = true;
  for (size_t i = 0; i < shape.rows * cols; ++i) {
    const size_t row = i / cols, col = i % cols;
    const auto p = [&](size_t j) { return run.p[row * rank + j]; };
    const auto minus_p = [&](size_t j) { return -run.p[row * rank + j]; };
    const auto q = [&](size_t j) { return run.q[j * cols + col]; };
    const auto local = [&](size_t j) { return run.next_q[j * cols + col]; };
    good = good && near(run.out[i], rank, p, q) &&
        near(run.left[i], rank, minus_p, local, run.sum[i]);
  }
  return good;
}

std::vector<Shape> shapes() {
  std::vector<Shape> out;
  for (int rank = 1; rank <= kMaxRank; ++rank) {
    out.push_back({37, 53, rank});
  }
  for (const int rank : {1, 2, 3, 4, 8, 16}) {
    for (const auto& [rows, cols] : std::vector<std::pair<size_t, size_t>>{
             {0, 5},
             {5, 0},
             {1, 1},
             {1, 17},
             {3, 15},
             {4, 16},
             {5, 17},
             {64, 64},
             {7, 2050},
             {301, 33}}) {
      out.push_back({rows, cols, rank});
    }
  }
  return out;
}

void testPasses() {
  for (const Shape& shape : shapes()) {
    const Run run(shape);
    CHECK(projectionsAreRight(run, shape));
    CHECK(reconstructionIsRight(run, shape));
    CHECK(guardsIntact(run.sum) && guardsIntact(run.p));
    CHECK(guardsIntact(run.next_q) && guardsIntact(run.out));
    CHECK(guardsIntact(run.left));
  }
}

void testLevelsAndThreadsGiveTheSameBits() {
  const std::vector<int> few{3, 8}, all{1, 2, 3, 4, 8};
  for (const int rank : check::kSanitized ? few : all) {
    const Shape shape{200, 3001, rank};
    setLevel(Level::kScalar);
    setThreads(1);
    const Run first(shape);
    check::atEachLevel([&] {
      for (const int count : {1, 3}) {
        setThreads(count);
        CHECK(Run(shape) == first);
      }
    });
  }
  setThreads(1);
}

void testResidualOfASingleRank() {
  const Shape shape{33, 47, 3};
  const Run run(shape);
  std::vector<float> out(shape.rows * shape.cols), left(run.sum);
  // With a single rank, the sum of the ranks' Q is the rank's own Q.
  reconstruct(
      out.data(),
      left.data(),
      shape.rows,
      shape.cols,
      shape.rank,
      run.p.data(),
      run.next_q.data(),
      run.next_q.data());
  for (size_t i = 0; i < out.size(); ++i) {
    CHECK_EQ(left[i], run.left[i]);
    CHECK_EQ(left[i], run.sum[i] - out[i]);
  }
}

void checkOrthonormal(
    const std::vector<float>& p,
    size_t rows,
    const std::vector<bool>& kept) {
  const size_t rank = kept.size();
  for (size_t a = 0; a < rank; ++a) {
    for (size_t b = 0; b < rank; ++b) {
      double product = 0;
      for (size_t row = 0; row < rows; ++row) {
        product += double(p[row * rank + a]) * double(p[row * rank + b]);
      }
      const double expected = a == b && kept[a] ? 1.0 : 0.0;
      CHECK(std::fabs(product - expected) < 1e-6);
    }
  }
}

void testOrthonormal() {
  for (int rank = 1; rank <= kMaxRank; ++rank) {
    for (const float scale : {1.0f, 1e-20f, 1e18f}) {
      const size_t rows = 200;
      std::vector<float> p = normals(rows * size_t(rank), uint32_t(rank));
      for (float& x : p) {
        x *= scale;
      }
      // Nearly parallel columns are the hard case.
      for (size_t i = 0; rank > 1 && i < rows; ++i) {
        float* row = p.data() + i * size_t(rank);
        row[1] = row[0] + row[1] * 1e-3f;
      }
      orthogonalise(p.data(), rows, rank);
      checkOrthonormal(p, rows, std::vector<bool>(size_t(rank), true));
    }
  }
}

void testDependentColumns() {
  const size_t rows = 100, rank = 5;
  std::vector<float> p = normals(rows * rank, 4);
  for (size_t i = 0; i < rows; ++i) {
    float* row = p.data() + i * rank;
    row[1] = -3.0f * row[0];
    row[2] = 0.0f;
    row[4] = 0.3f * row[0] + 1.7f * row[3];
  }
  orthogonalise(p.data(), rows, int(rank));
  checkOrthonormal(p, rows, {true, false, false, true, false});
  for (size_t i = 0; i < rows; ++i) {
    CHECK(p[i * rank + 1] == 0 && p[i * rank + 2] == 0 && p[i * rank + 4] == 0);
  }
}

void testMoreColumnsThanRows() {
  std::vector<float> p = normals(3 * 8, 6);
  orthogonalise(p.data(), 3, 8);
  checkOrthonormal(p, 3, {true, true, true, false, false, false, false, false});
}

void testStepReproducesAMatrixOfRankTwo() {
  const size_t rows = 120, cols = 77;
  const std::vector<float> a = normals(rows * 2, 1), b = normals(cols * 2, 2);
  for (const float scale : {1.0f, 0.0f}) {
    for (const int rank : {2, 4}) {
      std::vector<float> gradient(rows * cols), residual(rows * cols);
      for (size_t i = 0; i < rows * cols; ++i) {
        const size_t row = i / cols, col = i % cols;
        gradient[i] =
            scale * (a[row * 2] * b[col * 2] + a[row * 2 + 1] * b[col * 2 + 1]);
      }
      std::vector<float> q = normals(cols * size_t(rank), 3);
      std::vector<float> p(rows * size_t(rank)), out(rows * cols, kGuard);
      projectRows(
          gradient.data(),
          residual.data(),
          rows,
          cols,
          rank,
          q.data(),
          p.data());
      orthogonalise(p.data(), rows, rank);
      projectCols(residual.data(), rows, cols, rank, p.data(), q.data());
      reconstruct(
          out.data(),
          residual.data(),
          rows,
          cols,
          rank,
          p.data(),
          q.data(),
          q.data());
      for (size_t i = 0; i < rows * cols; ++i) {
        CHECK(std::fabs(out[i] - gradient[i]) <= 2e-5f * scale);
        CHECK(std::fabs(residual[i]) <= 2e-5f * scale);
      }
    }
  }
}

// The answers are from kat_vectors in the authors' Random123 distribution.
void testPhilox() {
  constexpr uint32_t kOnes = 0xffffffffu;
  CHECK(
      (philox({0, 0, 0, 0}, {0, 0}) ==
       PhiloxBlock{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  CHECK(
      (philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
       PhiloxBlock{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  CHECK(
      (philox(
           {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
           {0xa4093822u, 0x299f31d0u}) ==
       PhiloxBlock{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

} // namespace

int main() {
  testPhilox();
  check::atEachLevel([] {
    testPasses();
    testResidualOfASingleRank();
    testStepReproducesAMatrixOfRankTwo();
  });
  testLevelsAndThreadsGiveTheSameBits();
  testOrthonormal();
  testDependentColumns();
  testMoreColumnsThanRows();
  return check::report();
}
