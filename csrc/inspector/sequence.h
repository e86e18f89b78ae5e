// Finds the sequence of collectives that a communicator repeats.
//
// A training step makes the same calls each time. Messages are left out: the
// plugin writes them apart from collectives, so their place among the
// collectives is not known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspector/log_file.h"

namespace commprof::inspector {

struct Call {
  std::string kind;
  uint64_t sizeBytes = 0;
};

struct Sequence {
  // Calls of one turn, that is, of one repetition. The first call need not be
  // the first call of a training step.
  std::vector<Call> calls;
  uint64_t turns = 0; // number of whole turns
  uint64_t before = 0; // number of calls before the first turn
};

// Finds the shortest sequence that a member's first 65536 collectives repeat at
// their end. The sequence must repeat at least 3 times, over at least four
// fifths of these calls. The result has no calls if there is no such sequence,
// or if calls were lost or already taken (follow.h).
Sequence sequenceOf(const Communicator& member);

} // namespace commprof::inspector
