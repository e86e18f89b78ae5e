#include "device/device_clock.h"

#include <cstdlib>

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

bool near(uint64_t actual, uint64_t expected, uint64_t error) {
  return (actual > expected ? actual - expected : expected - actual) <= error;
}

// If there is only one anchor, the error grows by 500 ppm of the distance to
// the anchor.
void oneAnchorMapsToItsMiddle() {
  DeviceClock clock;
  CHECK(!clock.known());
  clock.add({1000, 5'000'000, 5'000'020});
  CHECK(clock.known());
  CHECK_EQ(clock.toHost(1000).time_ns, 5'000'010u);
  CHECK_EQ(clock.toHost(1000).error_ns, 10u);
  CHECK_EQ(clock.toHost(0).time_ns, 4'999'010u);
  CHECK_EQ(clock.toHost(2'001'000).time_ns, 7'000'010u);
  CHECK_EQ(clock.toHost(2'001'000).error_ns, 1010u);
  CHECK_EQ(clock.rate(), 1.0);
}

// A double cannot hold an uptime of 400 days to the nanosecond.
void keepsNanosecondsOfALongUptime() {
  DeviceClock clock;
  const uint64_t late = 400ull * 86400 * kSecond + 1;
  clock.add({0, late, late});
  CHECK_EQ(clock.toHost(3).time_ns, late + 3);
}

void twoAnchorsGiveTheRate() {
  DeviceClock clock;
  const auto host = [](int64_t device_ns) {
    return 7 * kSecond + uint64_t(double(device_ns) * 1.0001);
  };
  const auto add = [&](int64_t device_ns, uint64_t width_ns) {
    const uint64_t middle = host(device_ns);
    clock.add({device_ns, middle - width_ns / 2, middle + width_ns / 2});
  };
  add(0, 2000);
  add(int64_t(5 * kSecond), 900'000);
  add(int64_t(10 * kSecond), 2000);
  // The best two of the three anchors are 10 s apart, and each is 2 us wide.
  CHECK(std::abs(clock.rate() - 1.0001) < 1e-9);
  for (const int64_t device_ns : {0ll, 5'000'000'000ll, 12'000'000'000ll}) {
    const HostTime time = clock.toHost(device_ns);
    CHECK(near(time.time_ns, host(device_ns), 2));
    CHECK(time.error_ns >= 1000 && time.error_ns <= 2001);
  }
}

void timesAreWithinTheErrorBound() {
  for (const int64_t shift : {-4000, 4000}) {
    DeviceClock clock;
    for (int64_t i = 0; i < 20; ++i) {
      const int64_t off = i % 2 == 0 ? shift : -shift;
      const uint64_t middle = uint64_t(i + 1) * kSecond + uint64_t(off);
      clock.add({i * int64_t(kSecond), middle - 4000, middle + 4000});
    }
    for (int64_t at = 0; at < 25; ++at) {
      const HostTime time = clock.toHost(at * int64_t(kSecond));
      CHECK(near(time.time_ns, uint64_t(at + 1) * kSecond, time.error_ns));
    }
  }
}

void theOldestAnchorsAreDropped() {
  DeviceClock clock;
  const auto count = int64_t(DeviceClock::kMaxAnchors);
  for (int64_t i = 0; i < 2 * count; ++i) {
    const int64_t device_ns = i * int64_t(kSecond);
    const double rate = i < count ? 1.0 : 1.0002;
    const double since = double((i - count) * int64_t(kSecond)) * rate;
    const uint64_t host = 1000 * kSecond + uint64_t(int64_t(since));
    clock.add({device_ns, host, host});
  }
  CHECK(std::abs(clock.rate() - 1.0002) < 1e-8);
}

} // namespace

int main() {
  oneAnchorMapsToItsMiddle();
  keepsNanosecondsOfALongUptime();
  twoAnchorsGiveTheRate();
  timesAreWithinTheErrorBound();
  theOldestAnchorsAreDropped();
  return check::report();
}
