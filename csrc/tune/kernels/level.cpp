#include "tune/kernels/level.h"

#ifdef COMMPROF_X86
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace commprof::kernels {

namespace {

constexpr Level kAll[] = {Level::kScalar, Level::kAvx2, Level::kAvx512};

#ifdef COMMPROF_X86
// Clang 14's __builtin_cpu_supports() does not know "f16c".
bool cpuHasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool cpuHas([[maybe_unused]] Level level) {
#ifdef COMMPROF_X86
  // This function may be called before the compiler's own initialisation.
  __builtin_cpu_init();
  switch (level) {
    case Level::kScalar:
      return true;
    case Level::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
          cpuHasF16c();
    case Level::kAvx512:
      return cpuHas(Level::kAvx2) && __builtin_cpu_supports("avx512f") &&
          __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") &&
          __builtin_cpu_supports("avx512dq");
  }
  return false;
#else
  return level == Level::kScalar;
#endif
}

Level levelNamed(const std::string& name) {
  std::string allowed;
  for (const Level level : availableLevels()) {
    if (name == levelName(level)) {
      return level;
    }
    allowed += std::string(allowed.empty() ? "" : ", ") + levelName(level);
  }
  throw std::invalid_argument(
      "COMMPROF_SIMD is \"" + name +
      "\"; set it to a level that this CPU and build support: " + allowed);
}

Level initialLevel() {
  const char* forced = std::getenv("COMMPROF_SIMD");
  return forced != nullptr && *forced != '\0' ? levelNamed(forced)
                                              : availableLevels().back();
}

// -1 until the first use.
std::atomic<int> current{-1};

} // namespace

const char* levelName(Level level) noexcept {
  constexpr const char* kNames[] = {"scalar", "avx2", "avx512"};
  return kNames[int(level)];
}

std::vector<Level> availableLevels() {
  std::vector<Level> out;
  for (const Level level : kAll) {
    if (cpuHas(level)) {
      out.push_back(level);
    }
  }
  return out;
}

Level currentLevel() {
  int level = current.load(std::memory_order_relaxed);
  if (level < 0) {
    level = int(initialLevel());
    current.store(level, std::memory_order_relaxed);
  }
  return Level(level);
}

void setLevel(Level level) {
  current.store(int(levelNamed(levelName(level))), std::memory_order_relaxed);
}

} // namespace commprof::kernels
