#include "kernels/compare.h"

#include "kernels/compare_table.h"

namespace commprof::kernels {

uint32_t maxAbsBits(const float* x, size_t n) {
  return COMMPROF_PICK(compareTable).maxAbsBits(x, 0, n);
}

uint32_t maxAbsBitsOfSum(const float* x, const float* y, size_t n) {
  return COMMPROF_PICK(compareTable).maxAbsBitsOfSum(x, y, 0, n);
}

Comparison compare(const float* wanted, const float* sent, size_t n) {
  Comparison out;
  COMMPROF_PICK(compareTable).compare(wanted, sent, 0, n, &out);
  return out;
}

} // namespace commprof::kernels
