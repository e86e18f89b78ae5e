// Counts the operations of a job that still runs, whose logs grow. Calls that
// are over are taken out of the logs' streams when they are counted, so that
// memory does not grow with the logs. Processes write their logs in pieces, and
// not all at the same time. A call is over once every process that is followed
// has written this call, or a later call of the same communicator and kind. A
// process that has stopped writing must no longer be followed: its ranks then
// count as not recorded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "inspector/log_file.h"
#include "inspector/waits.h"

namespace commprof::inspector {

// Takes the calls of one kind that are over, and splits them as
// splitCollectives does. `isFollowed[i]` is 0 if the log of `members[i]` is no
// longer followed.
Waits takeCollectives(
    std::span<Communicator* const> members,
    std::span<const uint8_t> isFollowed,
    const std::string& kind,
    uint64_t ranks,
    uint32_t blocks);

// Takes the messages whose send and recv were both written. If a record is
// lost, the sequence that the member's messages repeat tells which message is
// missing, as in splitMessages. This is possible once a later number exceeds
// the missing one by at least 32, and by at least the length of the sequence.
// Leaves out: messages of a member that has lost a message and repeats no
// sequence; messages with a rank that is not among the members, even if that
// rank is added later; and the oldest of too many messages that wait for the
// other rank's records. `isAll`: takes all messages that were written, and
// splits them exactly as splitMessages does.
Waits takeMessages(
    std::span<Communicator* const> members,
    uint32_t blocks,
    bool isAll);

// Takes all operations of a kind whose times are not split.
Waits takeUnsplit(
    std::span<Communicator* const> members,
    const std::string& kind);

} // namespace commprof::inspector
