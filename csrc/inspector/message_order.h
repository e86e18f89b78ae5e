// Puts the messages of one rank in order, including messages whose record is
// lost.
//
// A rank numbers its sends and recvs together, and each training step exchanges
// the same messages. If the peers and directions of the recorded messages
// repeat, the missing number tells which message was lost. The peer's k-th recv
// from this rank receives this rank's k-th send to the peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inspector/log_file.h"

namespace commprof::inspector {

struct MessageOrder {
  std::vector<Message> messages; // one for each number
  // Length of the repeated sequence; 0 if no message is lost.
  size_t turn = 0;
};

// Returns the lowest sequence number in a stream. If the stream is null or has
// no record, returns the largest possible number.
uint32_t leastNumber(const Stream* stream);

// Returns the recorded messages, in the order of their numbers. Either stream
// may be null.
std::vector<Message> byNumber(const Stream* sends, const Stream* receives);

// Returns all messages from number `first` to the last number in `recorded`, in
// order and without a gap. Returns nothing if the order cannot be found: a
// number comes twice, too many records are lost, the records do not repeat a
// sequence, or the records begin long after `first` and `before` is empty.
// `before`: earlier messages, which are only used to find the sequence.
MessageOrder messagesInOrder(
    std::span<const Message> recorded,
    uint32_t first,
    std::span<const Message> before = {});

} // namespace commprof::inspector
