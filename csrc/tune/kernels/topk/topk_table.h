// Vectorised parts of a top-K search. A key is the bits of |x| as int32: never
// negative, and ordered like |x|.
//
// Candidate arrays have room for kPad additional entries, because vectors are
// read and stored whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tune/kernels/level.h"

namespace commprof::kernels {

inline constexpr size_t kPad = 64;

struct Pairs {
  int32_t* indices;
  float* values;
};

// A selection: keys above `key`, and the first `ties` that equal it.
struct Cut {
  int32_t key;
  size_t ties;
};

// The collectors append to `out`, after its `held` pairs, the values in [begin,
// end) whose key is above `above`, and return the new number of pairs.
struct TopKTable {
  size_t (*collect)(
      const float* x,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // Collects from x + residual; residual becomes the sum, zero where collected.
  size_t (*collectSum)(
      const float* x,
      float* residual,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // As collectSum, but stores the sum in another array and zeroes x. `streams`:
  // stores bypass the caches; then sum + begin must be aligned to 64 bytes.
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
  // Collects from residual, which becomes zero where collected.
  size_t (*collectResidual)(
      float* residual,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // Stores the keys of `values` up to `highest`; *higher counts the keys above
  // `highest`.
  size_t (*keysUpTo)(
      const float* values,
      size_t count,
      int32_t highest,
      int32_t* keys,
      size_t* higher);
  // Stores the keys from `lowest` to `highest`; `out` may be `keys`.
  size_t (*keysWithin)(
      const int32_t* keys,
      size_t count,
      int32_t lowest,
      int32_t highest,
      int32_t* out);
  // Moves the selected pairs to `to`, which has room for exactly `room` of them
  // or is `from`. The other pairs' values are restored in `residual` unless it
  // is null.
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
