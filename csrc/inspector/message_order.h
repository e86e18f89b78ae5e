// The messages of one rank in their order, with those whose record is lost.
//
// A rank numbers its sends and recvs together, and a training step exchanges
// the same messages each time. So if the peers and directions of the recorded
// messages repeat with a period of their numbers, a number that is missing
// tells whose message was lost, and the k-th send to a peer is its k-th recv.
#pragma once

#include <cstdint>
#include <vector>

#include "inspector/log_file.h"

namespace commprof::inspector {

struct Message {
  const Record* record = nullptr; // null if it is lost
  int32_t peer = -1;
  bool isSend = false;
};

// Messages from the number `first` on to the last that was recorded, without a
// gap. Empty if a number comes twice, or if records are lost and the others do
// not repeat a sequence with at least 3 records of each of its places, or come
// long after `first`. Either stream may be null.
std::vector<Message> messagesInOrder(
    const Stream* sends,
    const Stream* receives,
    uint32_t first);

} // namespace commprof::inspector
