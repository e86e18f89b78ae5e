#include "tune/kernels/linear/compare.h"

#include <algorithm>
#include <vector>

#include "tune/kernels/linear/linear_tables.h"
#include "tune/kernels/parallel.h"

namespace commprof::kernels {

namespace {

// Calls kernel(begin, end) for each piece of n values; returns the results.
template <class Result, class Kernel>
std::vector<Result> ofPieces(size_t n, const Kernel& kernel) {
  std::vector<Result> results((n + kGrain - 1) / kGrain);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    results[begin / kGrain] = kernel(begin, end);
  });
  return results;
}

uint32_t largest(const std::vector<uint32_t>& bits) {
  return bits.empty() ? 0 : *std::max_element(bits.begin(), bits.end());
}

} // namespace

uint32_t maxAbsBits(const float* x, size_t n) {
  const CompareTable& kernels = COMMPROF_PICK(compareTable);
  return largest(ofPieces<uint32_t>(n, [&](size_t begin, size_t end) {
    return kernels.maxAbsBits(x, begin, end);
  }));
}

uint32_t maxAbsBitsOfSum(const float* x, const float* y, size_t n) {
  const CompareTable& kernels = COMMPROF_PICK(compareTable);
  return largest(ofPieces<uint32_t>(n, [&](size_t begin, size_t end) {
    return kernels.maxAbsBitsOfSum(x, y, begin, end);
  }));
}

Comparison compare(const float* wanted, const float* sent, size_t n) {
  const CompareTable& kernels = COMMPROF_PICK(compareTable);
  Comparison all;
  for (const Comparison& piece :
       ofPieces<Comparison>(n, [&](size_t begin, size_t end) {
         Comparison out;
         kernels.compare(wanted, sent, begin, end, &out);
         return out;
       })) {
    all.wanted_norm2 += piece.wanted_norm2;
    all.sent_norm2 += piece.sent_norm2;
    all.dot += piece.dot;
    all.error_norm2 += piece.error_norm2;
    all.zeroed += piece.zeroed;
  }
  return all;
}

} // namespace commprof::kernels
