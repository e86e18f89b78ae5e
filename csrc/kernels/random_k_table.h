// The loops of random_k.h over a part of the array each; `blocks` are those
// from begin / 64 to below end / 64, and `packed` is where the first of them
// belongs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"

namespace commprof::kernels {

struct ChosenBlocks {
  const uint32_t* first;
  size_t count;
};

struct RandomKTable {
  void (*gather)(
      const float* x,
      float* residual,
      size_t begin,
      size_t end,
      ChosenBlocks blocks,
      float* packed);
  void (*scatter)(
      const float* packed,
      size_t begin,
      size_t end,
      ChosenBlocks blocks,
      float factor,
      float* out);
};

COMMPROF_TABLE(RandomKTable, randomKTable);

} // namespace commprof::kernels
