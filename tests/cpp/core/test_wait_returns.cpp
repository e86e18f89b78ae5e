#include "core/wait_returns.h"

#include <atomic>
#include <memory>
#include <thread>

#include "check.h"

using namespace commprof;

namespace {

void completionIsNoLaterThanTheWaitsReturn() {
  const auto returns = std::make_unique<WaitReturns>();
  returns->note(7, 100);
  CHECK_EQ(returns->completionNs(7, 150), 100u);
  CHECK_EQ(returns->completionNs(7, 90), 90u);
  CHECK_EQ(returns->completionNs(8, 150), 150u);
}

void onlyTheFirstReturnCounts() {
  const auto returns = std::make_unique<WaitReturns>();
  returns->note(7, 100);
  returns->note(7, 120);
  CHECK_EQ(returns->completionNs(7, 150), 100u);
}

void anOverwrittenOperationHasNoBound() {
  const auto returns = std::make_unique<WaitReturns>();
  returns->note(7, 100);
  returns->note(7 + WaitReturns::kMost, 200);
  CHECK_EQ(returns->completionNs(7, 150), 150u);
  CHECK_EQ(returns->completionNs(7 + WaitReturns::kMost, 250), 200u);
}

// All ids have one place in the table, because they differ by multiples of
// kMost.
void aReaderNeverGetsAnotherOperationsReturn() {
  const auto returns = std::make_unique<WaitReturns>();
  std::atomic<uint64_t> latest{7};
  std::atomic<bool> stopping{false};
  std::thread writer([&] {
    for (uint64_t op_id = 7; !stopping; op_id += WaitReturns::kMost) {
      returns->note(op_id, 10 * op_id);
      latest = op_id;
    }
  });
  constexpr uint64_t kNever = ~uint64_t{0};
  for (int i = 0; i < 200000; ++i) {
    const uint64_t op_id = latest;
    const uint64_t seen_ns = returns->completionNs(op_id, kNever);
    CHECK(seen_ns == 10 * op_id || seen_ns == kNever);
  }
  stopping = true;
  writer.join();
}

} // namespace

int main() {
  completionIsNoLaterThanTheWaitsReturn();
  onlyTheFirstReturnCounts();
  anOverwrittenOperationHasNoBound();
  aReaderNeverGetsAnotherOperationsReturn();
  return check::report();
}
