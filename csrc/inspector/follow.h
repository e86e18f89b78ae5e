// Counts the operations of a running job, whose logs grow. Counted calls are
// removed from memory.
//
// Processes write their logs in pieces, at different times. A call is over once
// every followed process has written this call, or a later call of the same
// communicator and kind. A process that has stopped writing must no longer be
// followed. Its ranks then count as not recorded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "inspector/log_file.h"
#include "inspector/waits.h"

namespace commprof::inspector {

// Takes the calls of one kind that are over, and splits their times as
// splitCollectives() does. `isFollowed[i]` is 0 if the log of `members[i]` is
// no longer followed.
Waits takeCollectives(
    std::span<Communicator* const> members,
    std::span<const uint8_t> isFollowed,
    const std::string& kind,
    uint64_t ranks,
    uint32_t blocks);

// Takes the messages whose send and recv were both written, and splits their
// times. If records are lost, the missing messages are inferred from the
// sequence that a member's messages repeat (message_order.h).
//
// Leaves out the messages of a member whose order is not known, messages with a
// rank that is not among the members (even if the rank is added later), and the
// oldest messages if too many wait for the other rank. If `isAll` is true,
// takes all written messages and splits them as splitMessages() does.
Waits takeMessages(
    std::span<Communicator* const> members,
    uint32_t blocks,
    bool isAll);

// Takes all operations of a kind whose times are not split.
Waits takeUnsplit(
    std::span<Communicator* const> members,
    const std::string& kind);

} // namespace commprof::inspector
