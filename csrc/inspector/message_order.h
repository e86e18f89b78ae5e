// The messages of one rank in their order, including messages whose record is
// lost.
//
// A rank numbers its sends and recvs together, and a training step exchanges
// the same messages each time. So if the peers and directions of the recorded
// messages repeat with a period, the missing number tells with which peer a
// message was lost. The k-th send to a peer is received by the peer's k-th recv
// from this rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inspector/log_file.h"

namespace commprof::inspector {

struct MessageOrder {
  std::vector<Message> messages; // one for each number
  // Length of the sequence from which lost messages were inferred; 0 if none is
  // lost.
  size_t turn = 0;
};

// The lowest sequence number in a stream. If there is no record, or the stream
// is null: the largest possible number.
uint32_t leastNumber(const Stream* stream);

// The recorded messages, in the order of their numbers. Either stream may be
// null.
std::vector<Message> byNumber(const Stream* sends, const Stream* receives);

// Returns all messages from number `first` to the last one in `recorded`, in
// the order of their numbers, without a gap. Returns nothing if a number comes
// twice. If records are lost, also returns nothing if they are more than three
// quarters of all, if the other records do not repeat a sequence with at least
// 3 records of each place, or if these begin long after `first` and `before` is
// empty. Messages in `before` are not part of the result, but also serve to
// find the sequence.
MessageOrder messagesInOrder(
    std::span<const Message> recorded,
    uint32_t first,
    std::span<const Message> before = {});

} // namespace commprof::inspector
