#include "kernels/sign.h"

#include "kernels/sign_table.h"

namespace commprof::kernels {

void encodeSign(
    const float* x,
    float* residual,
    uint64_t* bits,
    float* scales,
    size_t n) {
  COMMPROF_PICK(signTable).encode(x, residual, bits, scales, 0, n);
}

void addSign(
    const uint64_t* bits,
    const float* scales,
    float* out,
    size_t n,
    float factor) {
  COMMPROF_PICK(signTable).add(bits, scales, out, factor, 0, n);
}

} // namespace commprof::kernels
