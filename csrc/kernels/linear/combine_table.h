#pragma once

#include "kernels/dispatch.h"
#include "kernels/linear/combine.h"

namespace commprof::kernels {

struct CombineTable {
  // By element, then by reduction.
  using Function =
      void (*)(const std::byte* const* in, int count, std::byte* out, size_t n);
  Function functions[6][4];
};
COMMPROF_TABLE(CombineTable, combineTable)

} // namespace commprof::kernels
