// The sequence of collectives that a communicator repeats, if it does.
//
// A training step makes the same calls each time, so the calls of a log repeat
// a sequence. Messages are left out: the plugin writes messages apart from
// collectives, so that the place of a message among the collectives is not
// known.
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
  // Calls of one turn, that is, of one repetition. The first of them need not
  // be the first call of a training step.
  std::vector<Call> calls;
  uint64_t turns = 0; // whole turns
  uint64_t before = 0; // calls before the first turn, such as of the set-up
};

// Finds the shortest sequence that repeats at the end of a member's log, in at
// least 3 turns that make up at least four fifths of the log's calls. The
// result has no calls if there is no such sequence, or if the member lost
// calls.
Sequence sequenceOf(const Communicator& member);

} // namespace commprof::inspector
