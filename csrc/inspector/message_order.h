// The messages of one rank in their order, with those whose record is lost.
//
// A rank numbers its sends and recvs together, and a training step exchanges
// the same messages each time. So if the peers and directions of the recorded
// messages repeat with a period of their numbers, a number that is missing
// tells whose message was lost, and the k-th send to a peer is its k-th recv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inspector/log_file.h"

namespace commprof::inspector {

struct MessageOrder {
  std::vector<Message> messages; // one for each number
  // Length of the sequence that told the lost messages; 0 if none is lost.
  size_t turn = 0;
};

// The most that a number can be if there is no record; the stream may be null.
uint32_t leastNumber(const Stream* stream);

// The recorded messages, by their numbers. Either stream may be null.
std::vector<Message> byNumber(const Stream* sends, const Stream* receives);

// Messages from the number `first` on to the last of `recorded`, which are in
// the order of their numbers, without a gap. Empty if a number comes twice, or
// if records are lost and the others do not repeat a sequence with at least 3
// records of each of its places, or come long after `first`. Messages `before`
// the first are not part of the result, but show the sequence too.
MessageOrder messagesInOrder(
    std::span<const Message> recorded,
    uint32_t first,
    std::span<const Message> before = {});

} // namespace commprof::inspector
