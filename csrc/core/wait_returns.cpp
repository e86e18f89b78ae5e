#include "core/wait_returns.h"

#include <algorithm>

namespace commprof {

WaitReturns& WaitReturns::instance() noexcept {
  static WaitReturns returns;
  return returns;
}

void WaitReturns::note(uint64_t op_id, uint64_t returned_ns) noexcept {
  Return& kept = returns_[op_id % kMost];
  if (kept.op_id.load(std::memory_order_relaxed) == op_id) {
    return;
  }
  kept.op_id.store(0, std::memory_order_relaxed);
  kept.returned_ns.store(returned_ns, std::memory_order_release);
  kept.op_id.store(op_id, std::memory_order_release);
}

uint64_t WaitReturns::completionNs(uint64_t op_id, uint64_t seen_ns)
    const noexcept {
  const Return& kept = returns_[op_id % kMost];
  if (kept.op_id.load(std::memory_order_acquire) != op_id) {
    return seen_ns;
  }
  const uint64_t returned_ns = kept.returned_ns.load(std::memory_order_acquire);
  // If another operation took the entry meanwhile, `returned_ns` belongs to
  // that operation.
  const bool same = kept.op_id.load(std::memory_order_relaxed) == op_id;
  return same ? std::min(seen_ns, returned_ns) : seen_ns;
}

} // namespace commprof
