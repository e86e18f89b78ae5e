// A pause is a sleep that took far too long while the process used no
// processor.
#include "core/pause_watch.h"

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kMs = 1'000'000;

void stopped() {
  PauseWatch watch(2);
  watch.begin(200 * kMs, 1000 * kMs, 50 * kMs);
  // Both cores were busy for the planned 200 ms, then nothing for 2 s.
  CHECK(watch.end(3200 * kMs, 450 * kMs));
  CHECK_EQ(watch.found().count, 1u);
  CHECK_EQ(watch.found().longest_ns, 2100 * kMs);
  CHECK_EQ(watch.found().longest_begin_ns, 1100 * kMs);
}

void onTime() {
  PauseWatch watch(2);
  watch.begin(200 * kMs, 0, 0);
  CHECK(!watch.end(200 * kMs, 0));
  watch.begin(200 * kMs, 0, 0);
  CHECK(!watch.end(699 * kMs, 0)); // less than half a second late
  CHECK_EQ(watch.found().count, 0u);
}

void busy() {
  PauseWatch watch(2);
  watch.begin(200 * kMs, 0, 0);
  // One thread computed all the time; this one got no core.
  CHECK(!watch.end(2000 * kMs, 2000 * kMs));
  CHECK_EQ(watch.found().count, 0u);
}

void theLongestOfSeveral() {
  PauseWatch watch(1);
  for (const uint64_t late_ms : {1000, 3000, 700}) {
    watch.begin(200 * kMs, late_ms * kMs, 0);
    CHECK(watch.end((2 * late_ms + 200) * kMs, 0));
  }
  CHECK_EQ(watch.found().count, 3u);
  CHECK_EQ(watch.found().total_ns, (1100 + 3100 + 800) * kMs);
  CHECK_EQ(watch.found().longest_ns, 3100 * kMs);
  CHECK_EQ(watch.found().longest_begin_ns, 3100 * kMs);
}

} // namespace

int main() {
  stopped();
  onTime();
  busy();
  theLongestOfSeveral();
  return check::report();
}
