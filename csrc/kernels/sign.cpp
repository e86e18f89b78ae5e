#include "kernels/sign.h"

#include "kernels/parallel.h"
#include "kernels/sign_table.h"

namespace commprof::kernels {

void encodeSign(
    const float* x,
    float* residual,
    uint64_t* bits,
    float* scales,
    size_t n) {
  const auto& kernels = COMMPROF_PICK(signTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.encode(x, residual, bits, scales, begin, end);
  });
}

void addSign(
    const uint64_t* bits,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  const auto& kernels = COMMPROF_PICK(signTable);
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernels.add(bits, scales, out, factor, begin, end);
  });
}

} // namespace commprof::kernels
