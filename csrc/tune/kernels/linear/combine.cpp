#include "tune/kernels/linear/linear_tables.h"

namespace commprof::kernels {

void combine(
    Element element,
    Reduction reduction,
    const std::byte* const* in,
    int count,
    std::byte* out,
    size_t n) {
  COMMPROF_PICK(combineTable)
      .functions[size_t(element)][size_t(reduction)](in, count, out, n);
}

} // namespace commprof::kernels
