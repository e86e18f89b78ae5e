#include "kernels/sparse.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/sparse_table.h"

namespace commprof::kernels {

namespace {

constexpr size_t kPart = 65536; // places that one count speaks of

size_t parts(size_t n) {
  return (n + kPart - 1) / kPart;
}

// Where the three arrays of an encoding begin.
template <class Byte>
struct Layout {
  Layout(Byte* start, size_t n, size_t k)
      : counts(start),
        offsets(start + parts(n) * sizeof(uint32_t)),
        halves(offsets + k * sizeof(uint16_t)) {}

  uint32_t count(size_t part) const {
    uint32_t out;
    std::memcpy(&out, counts + part * sizeof out, sizeof out);
    return out;
  }
  Byte* offset(size_t index) const {
    return offsets + index * sizeof(uint16_t);
  }
  Byte* half(size_t index) const {
    return halves + index * sizeof(uint16_t);
  }

  Byte* counts;
  Byte* offsets;
  Byte* halves;
};

} // namespace

void encodeSparse(
    const int32_t* indices,
    const float* values,
    size_t k,
    size_t n,
    float scale,
    float* residual,
    uint8_t* out) {
  const Layout<uint8_t> layout(out, n, k);
  const int32_t* next = indices;
  const int32_t* end = indices + k;
  for (size_t part = 0; part < parts(n); ++part) {
    const size_t limit = std::min(n, (part + 1) * kPart);
    const int32_t* stop = std::partition_point(
        next, end, [limit](int32_t index) { return size_t(index) < limit; });
    const uint32_t count = uint32_t(stop - next);
    std::memcpy(layout.counts + part * sizeof count, &count, sizeof count);
    next = stop;
  }
  assert(next == end);
  COMMPROF_PICK(sparseTable)
      .pack(indices, values, k, scale, residual, layout.offsets, layout.halves);
}

bool validSparse(const uint8_t* in, size_t n, size_t k) {
  const auto& kernels = COMMPROF_PICK(sparseTable);
  const Layout<const uint8_t> layout(in, n, k);
  size_t next = 0;
  for (size_t part = 0; part < parts(n); ++part) {
    const size_t count = layout.count(part);
    if (count > k - next) {
      return false;
    }
    if (count == 0) {
      continue;
    }
    uint16_t last;
    std::memcpy(&last, layout.offset(next + count - 1), sizeof last);
    if (last >= n - part * kPart ||
        !kernels.ascending(layout.offset(next), count)) {
      return false;
    }
    next += count;
  }
  return next == k;
}

void addSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    float factor,
    float* dense) {
  const auto& kernels = COMMPROF_PICK(sparseTable);
  const Layout<const uint8_t> layout(in, n, k);
  size_t next = 0;
  for (size_t part = 0; part < parts(n); ++part) {
    const size_t count = layout.count(part);
    float* begin = dense + part * kPart;
    kernels.addPart(
        layout.offset(next), layout.half(next), count, factor, begin);
    next += count;
  }
}

} // namespace commprof::kernels
