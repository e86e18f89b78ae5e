// The sequence of collectives that a communicator repeats, if it does.
//
// A training step makes the same calls each time, so the calls of a log repeat
// a sequence. Messages are left out: the plugin writes them apart from the
// collectives, so that their place among these is not known.
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
  std::vector<Call> calls; // of one turn, in an order that may begin anywhere
  uint64_t turns = 0; // whole ones
  uint64_t before = 0; // calls before the first turn, such as of the set-up
};

// Finds the shortest sequence that ends the log of a member and repeats over at
// least 3 turns and four fifths of its calls. No calls if there is none, or if
// the member lost calls.
Sequence sequenceOf(const Communicator& member);

} // namespace commprof::inspector
