// Which instructions the kernels use, chosen once at run time.
#pragma once

#include <cstdint>
#include <vector>

namespace commprof::kernels {

enum class Level : uint8_t { kScalar, kAvx2, kAvx512 };

const char* levelName(Level level) noexcept; // "scalar", "avx2", "avx512"

// The levels that this CPU and this build have, lowest first; never empty.
std::vector<Level> availableLevels();

// The level in use: the highest available one, or what the environment variable
// COMMPROF_SIMD names. Throws std::invalid_argument, with the value and the
// allowed set, if that is unknown or not available here.
Level currentLevel();

// For tests: changes the level in use. Throws as currentLevel().
void setLevel(Level level);

} // namespace commprof::kernels
