// Operations of a job that still runs: takes the calls that are over from logs
// that grow, so that what was counted is not kept.
//
// Each process writes its log in pieces, at times of its own. A call is over
// once every process that is followed has written it or a later one of the same
// communicator and kind. A process that writes no more is not to be followed:
// its ranks then count as not recorded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "inspector/log_file.h"
#include "inspector/waits.h"

namespace commprof::inspector {

// Takes the calls of one kind that are over, as splitCollectives splits them.
// `isFollowed[i]` is 0 if `members[i]` writes no more.
Waits takeCollectives(
    std::span<Communicator* const> members,
    std::span<const uint8_t> isFollowed,
    const std::string& kind,
    uint64_t ranks,
    uint32_t blocks);

// Takes the messages whose send and recv were both written. Of one whose record
// is lost, the sequence of messages tells the place, as in splitMessages, once
// a whole turn of the sequence follows it, and 32 messages. Messages of a
// member that repeats no sequence are left out once it lost one. Messages with
// a rank that is not among the members are left out, also if it comes later,
// and of those that wait for the other rank's records the oldest, where they
// are too many. `isAll`: takes all that was written, exactly as splitMessages
// splits it.
Waits takeMessages(
    std::span<Communicator* const> members,
    uint32_t blocks,
    bool isAll);

// Takes all operations of a kind whose times are not split.
Waits takeUnsplit(
    std::span<Communicator* const> members,
    const std::string& kind);

} // namespace commprof::inspector
