// Vectorised parts of a top-K search. A key is the bits of |x| as int32. Keys
// are ordered like |x| and are not negative.
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

// Selects all keys above `key`, and the first `ties` keys that equal `key`.
struct Cut {
  int32_t key;
  size_t ties;
};

// The collect functions look for values in [begin, end) with keys above
// `above`. They append these values to `out`, which has `held` pairs, and
// return the new number of pairs.
struct TopKTable {
  size_t (*collect)(
      const float* x,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // Collects from x + residual. `residual` becomes this sum, with zeros in
  // place of the collected values.
  size_t (*collectSum)(
      const float* x,
      float* residual,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // Like collectSum, but stores the sum in `sum` and sets x to zero. If
  // `streams` is true, stores bypass the caches, and sum + begin must be
  // aligned to 64 bytes.
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
  // Collects from residual, and puts zeros in place of the collected values.
  size_t (*collectResidual)(
      float* residual,
      size_t begin,
      size_t end,
      int32_t above,
      Pairs out,
      size_t held);
  // Stores the keys of `values` that are at most `highest`. *higher becomes the
  // number of larger keys.
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
  // Copies the selected pairs to `to`, which has `room` places and may be
  // `from`. Writes the values of all other pairs back to residual, unless
  // residual is null.
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
