// Whom a rank waits for in an operation: all ranks of its group, or fewer where
// the operation has a root and in messages. The reasons, and what was measured,
// stand in commprof/analysis/align/matching.py; a test compares the two.
#pragma once

#include <cstdint>

#include "core/record.h"

namespace commprof {

// One operation as its rank issued it.
struct Meaning {
  Op op = Op::kAllReduce;
  uint32_t root = 0; // rank in the group, of operations that have one
  bool is_gloo = false; // who runs it
};

// Whether a rank may be done before another one has arrived.
bool mayBeDoneEarly(Op op) noexcept;

// Whether `rank` cannot be done before `other` has arrived, both of the group's
// `size` ranks. A rank needs itself.
bool needs(
    const Meaning& meaning,
    uint32_t size,
    uint32_t rank,
    uint32_t other) noexcept;

} // namespace commprof
