// From a public kernel to its code for the level in use. A kernel family has
// one struct of function pointers; each compilation of its *.simd.cpp file
// defines one object of it in its level's namespace:
//
//   block_tables.h: struct CastTable { void (*encodeHalf)(...); ... };
//                   COMMPROF_TABLE(CastTable, castTable);
//   cast.simd.cpp:  namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
//                   const CastTable castTable = {encodeHalf, ...}; }
//   cast.cpp:       COMMPROF_PICK(castTable).encodeHalf(...)
#pragma once

#include "kernels/level.h"

#ifdef COMMPROF_X86
#define COMMPROF_TABLE(Table, name) \
  namespace scalar {                \
  extern const Table name;          \
  }                                 \
  namespace avx2 {                  \
  extern const Table name;          \
  }                                 \
  namespace avx512 {                \
  extern const Table name;          \
  }
#define COMMPROF_PICK(name)              \
  (::commprof::kernels::pickLevel(       \
      ::commprof::kernels::scalar::name, \
      ::commprof::kernels::avx2::name,   \
      ::commprof::kernels::avx512::name))
#else
#define COMMPROF_TABLE(Table, name) \
  namespace scalar {                \
  extern const Table name;          \
  }
#define COMMPROF_PICK(name) (::commprof::kernels::scalar::name)
#endif

namespace commprof::kernels {

template <class Table>
const Table& pickLevel(
    const Table& scalar,
    const Table& avx2,
    const Table& avx512) {
  switch (currentLevel()) {
    case Level::kAvx512:
      return avx512;
    case Level::kAvx2:
      return avx2;
    case Level::kScalar:
      break;
  }
  return scalar;
}

} // namespace commprof::kernels
