// Splits the times that NCCL Inspector measured on the ranks of one
// communicator into waiting and transfer.
//
// A time is the duration of a rank's kernel. The kernel begins when the rank
// arrives, and ends when the operation is complete. In an all-reduce,
// all-gather, reduce-scatter or all-to-all, the kernels of all ranks end within
// a few microseconds. So the rank with the shortest time came last, and its
// time is the transfer. The other ranks waited for this rank during the rest of
// their times. No clocks are compared.
//
// If some ranks did not record a call, the shortest recorded time may include
// waiting. If this time is clearly longer than usual transfers of this size,
// all recorded ranks waited for a rank without a record. The waiting is
// attributed to that rank only if no other rank lacks a record. If the shortest
// time is not clearly longer, the last of the recorded ranks counts as the last
// of all, and some waiting may be missed.
//
// A send and its recv also end together, so the longer of the two waited for
// the other. The times of broadcasts and reduces are not split: the log does
// not name the root, and some ranks may leave such an operation early.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "inspector/log_file.h"

namespace commprof::inspector {

// Operations of one kind and size.
struct OfSize {
  uint64_t sizeBytes = 0;
  uint64_t calls = 0;
  uint64_t records = 0; // records with a time
  double waitUs = 0; // summed over calls and ranks
  double timeUs = 0; // waiting and transfer, summed over calls and ranks
  std::vector<float> transfersUs; // transfers of calls that all ranks recorded
};

// Operations of one kind on one communicator. Lists by rank have the order of
// the given streams.
struct Waits {
  uint64_t calls = 0;
  uint64_t completeCalls = 0; // recorded and timed on all ranks
  uint64_t lostRecords = 0; // missing records of calls that some ranks recorded
  // Number of calls that no rank recorded: missing sequence numbers between the
  // first and the last recorded number. 0 if calls are replayed.
  uint64_t missingCalls = 0;
  uint64_t unmatchedRecords = 0; // records whose call is not known
  uint64_t untimedRecords = 0;
  uint64_t differentSizes = 0; // calls whose ranks state different sizes
  std::vector<uint64_t> lostCalls; // [rank]: calls whose record is lost
  std::vector<double> timeUs; // [rank]
  // [rank]: estimated time of all operations, with or without a record. NaN if
  // the rank has no record with a time.
  std::vector<double> wholeTimeUs;
  std::vector<double> waitedUs; // [block, rank]: waiting of the rank
  // [block, rank]: waiting that the rank caused, summed over the waiting ranks.
  // If several ranks have the shortest time, each gets an equal share.
  std::vector<double> causedUs;
  double unattributedUs = 0; // waiting for ranks without a record
  // [block, rank]: estimated waiting in calls whose record the rank lost.
  std::vector<double> lostWaitUs;
  // [rank, other]: how long the other rank waited for the rank. Empty if there
  // are too many ranks.
  std::vector<double> waitersUs;
  std::vector<OfSize> sizes;
  // [block, rank]: time of messages without a match, as far as it exceeds the
  // usual time of such messages. It counts as waiting for an unknown rank.
  // Empty if all messages have a match.
  std::vector<double> unpairedUs;
};

// Splits the times of operations in which every rank waits for all ranks.
// `ranks`: number of ranks, including ranks that were not recorded and have no
// stream. The run is cut into `blocks` parts with equally many sequence
// numbers.
Waits splitCollectives(
    std::span<const Stream* const> streams,
    uint64_t ranks,
    uint32_t blocks);

// Splits the times of messages into waiting and transfer. `sends[i]` and
// `receives[i]` belong to the rank `members[i]`. Each of them may be null.
Waits splitMessages(
    std::span<const int64_t> members,
    std::span<const Stream* const> sends,
    std::span<const Stream* const> receives,
    uint32_t blocks);

// Messages from one member to another, in order; null for a lost record.
// `members`: indices of sender and receiver.
struct MessagePair {
  uint32_t members[2];
  std::vector<const Record*> records[2];
};

// Splits the times of matched messages of `members` ranks. If the two records
// of any message have different sizes, its whole pair is left out. Does not set
// `wholeTimeUs`.
Waits splitPairs(
    size_t members,
    std::span<const MessagePair> pairs,
    uint32_t blocks);

// Sums up operations whose times are not split, such as broadcasts.
Waits unsplit(std::span<const Stream* const> streams);

} // namespace commprof::inspector
