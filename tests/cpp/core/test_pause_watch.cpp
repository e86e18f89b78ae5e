#include "core/process/pause_watch.h"

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kMs = 1'000'000;

// The process uses 400 ms of CPU time, as two cores can give within 200 ms.
void sleep(PauseWatch& watch, uint64_t begin_ms, uint64_t end_ms) {
  watch.begin(200 * kMs, begin_ms * kMs, 50 * kMs);
  watch.end(end_ms * kMs, 450 * kMs);
}

void aLateIdleSleepIsAPause() {
  PauseWatch watch(2);
  sleep(watch, 1000, 3200);
  CHECK_EQ(watch.found().count, 0u);
  const auto pause = watch.supposed();
  CHECK(pause && pause->begin_ns == 1100 * kMs && pause->end_ns == 3200 * kMs);
  CHECK_EQ(watch.found().count, 1u);
  CHECK_EQ(watch.found().longest_ns, 2100 * kMs);
  CHECK_EQ(watch.found().longest_begin_ns, 1100 * kMs);
  CHECK(!watch.supposed());
}

void aSleepOnTimeIsNoPause() {
  PauseWatch watch(2);
  watch.begin(200 * kMs, 0, 0);
  watch.end(200 * kMs, 0);
  CHECK(!watch.supposed());
  watch.begin(200 * kMs, 0, 0);
  watch.end(699 * kMs, 0);
  CHECK(!watch.supposed());
  CHECK_EQ(watch.found().count, 0u);
}

void aLateSleepOfABusyProcessIsNoPause() {
  PauseWatch watch(2);
  watch.begin(200 * kMs, 0, 0);
  watch.end(2000 * kMs, 2000 * kMs);
  CHECK(!watch.supposed());
}

void theLongestPauseIsKept() {
  PauseWatch watch(1);
  for (const uint64_t late_ms : {1000, 3000, 700}) {
    watch.begin(200 * kMs, late_ms * kMs, 0);
    watch.end((2 * late_ms + 200) * kMs, 0);
    CHECK(watch.supposed().has_value());
  }
  CHECK_EQ(watch.found().count, 3u);
  CHECK_EQ(watch.found().total_ns, (1100 + 3100 + 800) * kMs);
  CHECK_EQ(watch.found().longest_ns, 3100 * kMs);
  CHECK_EQ(watch.found().longest_begin_ns, 3100 * kMs);
}

// A stop of less than 1 ms is ignored. A stop of less than 500 ms is taken, but
// not counted.
void onlyLongObservedStopsCount() {
  PauseWatch watch(2);
  CHECK(watch.take({1000 * kMs, 1005 * kMs}));
  CHECK(!watch.take({2000 * kMs, 2001 * kMs - 1}));
  CHECK_EQ(watch.found().count, 0u);
  CHECK(watch.take({3000 * kMs, 3500 * kMs}));
  CHECK(watch.take({4000 * kMs, 4499 * kMs}));
  CHECK_EQ(watch.found().count, 1u);
  CHECK_EQ(watch.found().total_ns, 500 * kMs);
  CHECK_EQ(watch.found().longest_begin_ns, 3000 * kMs);
}

void anObservedAndInferredPauseCountsOnce() {
  PauseWatch observed_first(2);
  observed_first.begin(200 * kMs, 1000 * kMs, 0);
  CHECK(observed_first.take({1050 * kMs, 3199 * kMs}));
  observed_first.end(3200 * kMs, 0);
  CHECK(!observed_first.supposed());
  CHECK_EQ(observed_first.found().total_ns, 2149 * kMs);

  PauseWatch inferred_first(2);
  sleep(inferred_first, 1000, 3200);
  CHECK(inferred_first.take({1050 * kMs, 3199 * kMs}));
  CHECK(!inferred_first.supposed());
  CHECK_EQ(inferred_first.found().total_ns, 2149 * kMs);
}

void anEarlierStopHidesNoPause() {
  PauseWatch watch(2);
  CHECK(watch.take({900 * kMs, 990 * kMs}));
  sleep(watch, 1000, 3200);
  CHECK(watch.supposed().has_value());
}

} // namespace

int main() {
  aLateIdleSleepIsAPause();
  aSleepOnTimeIsNoPause();
  aLateSleepOfABusyProcessIsNoPause();
  theLongestPauseIsKept();
  onlyLongObservedStopsCount();
  anObservedAndInferredPauseCountsOnce();
  anEarlierStopHidesNoPause();
  return check::report();
}
