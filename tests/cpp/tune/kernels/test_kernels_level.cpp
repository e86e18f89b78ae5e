#include <cstdlib>

#include "check.h"
#include "tune/kernels/level.h"
#include "tune/kernels/parallel.h"

using namespace commprof::kernels;

namespace {

std::string messageOf(void (*call)()) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void badNamesAreRefusedEveryTime() {
  ::setenv("COMMPROF_SIMD", "sse9", 1);
  for (int i = 0; i < 2; ++i) {
    const std::string message = messageOf([] { currentLevel(); });
    CHECK(contains(message, "\"sse9\"") && contains(message, "scalar"));
  }
}

void theEnvironmentSelectsTheLevel() {
  ::setenv("COMMPROF_SIMD", "scalar", 1);
  CHECK(currentLevel() == Level::kScalar);
  ::setenv("COMMPROF_SIMD", "", 1);
  CHECK(currentLevel() == Level::kScalar); // The variable is read only once.
}

void everyAvailableLevelCanBeSet() {
  CHECK(availableLevels().front() == Level::kScalar);
  for (const Level level : availableLevels()) {
    setLevel(level);
    CHECK(currentLevel() == level);
  }
}

void aLevelTheCpuLacksIsRefused() {
  if (availableLevels().back() == Level::kAvx512) {
    return;
  }
  const Level before = currentLevel();
  const std::string message = messageOf([] { setLevel(Level::kAvx512); });
  CHECK(contains(message, "\"avx512\""));
  CHECK(currentLevel() == before);
}

void badThreadCountsAreRefused() {
  for (const char* bad : {"0", "-1", "two", "2x", "257", "99999999999"}) {
    ::setenv("COMMPROF_KERNEL_THREADS", bad, 1);
    const std::string message = messageOf([] { threads(); });
    CHECK(contains(message, std::string("\"") + bad + "\""));
    CHECK(contains(message, "COMMPROF_KERNEL_THREADS"));
    CHECK(contains(message, "from 1 to 256"));
  }
  CHECK(contains(messageOf([] { setThreads(0); }), "\"0\""));
}

void theEnvironmentSetsTheThreadCount() {
  ::setenv("COMMPROF_KERNEL_THREADS", "3", 1);
  CHECK_EQ(threads(), 3);
  setThreads(5);
  CHECK_EQ(threads(), 5);
}

} // namespace

int main() {
  badNamesAreRefusedEveryTime();
  theEnvironmentSelectsTheLevel();
  everyAvailableLevelCanBeSet();
  aLevelTheCpuLacksIsRefused();
  badThreadCountsAreRefused();
  theEnvironmentSetsTheThreadCount();
  return check::report();
}
