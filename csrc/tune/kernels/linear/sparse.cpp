#include "tune/kernels/linear/sparse.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "tune/kernels/linear/linear_tables.h"

namespace commprof::kernels {

namespace {

constexpr size_t kPart = kSparsePart;

template <class Byte, class Word>
struct Layout {
  Layout(Byte* start, size_t n, size_t k)
      : counts(start),
        offsets(
            reinterpret_cast<Word*>(start + sparseParts(n) * sizeof(uint32_t))),
        halves(offsets + k) {}

  uint32_t count(size_t part) const {
    uint32_t out;
    std::memcpy(&out, counts + part * sizeof out, sizeof out);
    return out;
  }

  Byte* counts;
  Word* offsets;
  Word* halves;
};
using Written = Layout<uint8_t, uint16_t>;
using Read = Layout<const uint8_t, const uint16_t>;

} // namespace

void encodeSparse(
    const int32_t* indices,
    const float* values,
    size_t k,
    size_t n,
    float scale,
    float* residual,
    uint8_t* out) {
  const Written layout(out, n, k);
  const int32_t* next = indices;
  const int32_t* end = indices + k;
  for (size_t part = 0; part < sparseParts(n); ++part) {
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
  const Read layout(in, n, k);
  size_t next = 0;
  for (size_t part = 0; part < sparseParts(n); ++part) {
    const size_t count = layout.count(part);
    if (count > k - next) {
      return false;
    }
    if (count == 0) {
      continue;
    }
    const size_t last = layout.offsets[next + count - 1];
    if (last >= n - part * kPart ||
        !kernels.ascending(layout.offsets + next, count)) {
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
  const Read layout(in, n, k);
  size_t next = 0;
  for (size_t part = 0; part < sparseParts(n); ++part) {
    const size_t count = layout.count(part);
    float* begin = dense + part * kPart;
    kernels.addPart(
        layout.offsets + next, layout.halves + next, count, factor, begin);
    next += count;
  }
}

void cutSparse(
    const uint8_t* in,
    size_t n,
    size_t k,
    const SparseRange& range,
    uint8_t* out) {
  const Read from(in, n, k);
  const auto put = [&out](const void* begin, size_t bytes) {
    std::memcpy(out, begin, bytes);
    out += bytes;
  };
  put(from.counts + range.first_part * sizeof(uint32_t),
      range.parts * sizeof(uint32_t));
  put(from.offsets + range.before, range.count * sizeof(uint16_t));
  put(from.halves + range.before, range.count * sizeof(uint16_t));
}

} // namespace commprof::kernels
