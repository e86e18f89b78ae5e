// The parts of a top-K search that run over vectors. A key is the bits of |x|,
// as int32: never negative, and in the order of |x|.
//
// Arrays of candidates have room for kPad entries more than they hold: vectors
// are read and stored whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/level.h"

namespace commprof::kernels {

inline constexpr size_t kPad = 64;

struct Pairs {
  int32_t* indices;
  float* values;
};

// What is chosen: keys above `key`, and the first `ties` that equal it.
struct Cut {
  int32_t key;
  size_t ties;
};

// The collectors append to `out`, behind the `held` pairs in it, what has
// a key above `above` in [begin, end), and return how many are held then.
struct TopKTable {
  size_t (*collect)(
      const float* x,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // Of x + residual. residual becomes that sum, and zero where it was taken.
  size_t (*collectSum)(
      const float* x,
      float* residual,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // The same, with that sum in another array, and x becomes zero. `streams`:
  // past the caches; then sum + begin is aligned to 64 bytes.
  size_t (*collectMoved)(
      float* x,
      const float* residual,
      float* sum,
      bool streams,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // Of residual, which becomes zero where it was taken.
  size_t (*collectResidual)(
      float* residual,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // The keys of `values` up to `highest`, and in *higher how many exceed it.
  size_t (*keysUpTo)(
      const float* values,
      size_t count,
      int32_t highest,
      int32_t* keys,
      size_t* higher);
  // The keys from `lowest` to `highest`; `out` may be `keys`.
  size_t (*keysWithin)(
      const int32_t* keys,
      size_t count,
      int32_t lowest,
      int32_t highest,
      int32_t* out);
  // Moves the chosen pairs to `to`, which has room for just `room` of them or
  // is `from`. The others' values go back to where they were in `residual`,
  // unless that is null.
  size_t (*keep)(
      Pairs from,
      size_t count,
      Cut cut,
      Pairs to,
      size_t room,
      float* residual);
};

COMMPROF_TABLE(TopKTable, topKTable);

} // namespace commprof::kernels
