// SIMD instruction sets of the kernels, selected once at run time.
#pragma once

#include <cstdint>
#include <vector>

namespace commprof::kernels {

enum class Level : uint8_t { kScalar, kAvx2, kAvx512 };

const char* levelName(Level level) noexcept; // "scalar", "avx2", "avx512"

// Levels that this CPU and this build support, lowest first; never empty.
std::vector<Level> availableLevels();

// The level in use: the value of the environment variable COMMPROF_SIMD, or the
// highest available level. Throws std::invalid_argument if the variable's value
// is unknown or not available.
Level currentLevel();

// Changes the level in use, for tests. Throws std::invalid_argument if the
// level is not available.
void setLevel(Level level);

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

// Dispatch of kernels to the level in use. A kernel family has one struct of
// function pointers. The family's *.simd.cpp file is compiled once per level,
// and defines one object of the struct in each level's namespace:
//
//   block_tables.h: struct CastTable { void (*encodeHalf)(...); ... };
//                   COMMPROF_TABLE(CastTable, castTable);
//   cast.simd.cpp:  namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
//                   const CastTable castTable = {encodeHalf, ...}; }
//   cast.cpp:       COMMPROF_PICK(castTable).encodeHalf(...)
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
