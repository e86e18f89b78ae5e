#pragma once

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tune/kernels/level.h"

namespace check {

template <class Test>
void atEachLevel(Test test) {
  using commprof::kernels::Level;
  const std::vector<Level> available = commprof::kernels::availableLevels();
  for (const Level level : {Level::kScalar, Level::kAvx2, Level::kAvx512}) {
    const char* name = commprof::kernels::levelName(level);
    if (std::find(available.begin(), available.end(), level) ==
        available.end()) {
      std::printf("NOT RUN at level %s: not on this machine\n", name);
      continue;
    }
    std::printf("level %s\n", name);
    commprof::kernels::setLevel(level);
    test();
  }
}

} // namespace check
