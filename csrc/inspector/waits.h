// Waiting and transfer of the operations of one communicator, from the times
// that NCCL Inspector measured on its ranks.
//
// A time is the duration of a rank's kernel. The kernel begins when the rank
// arrives and ends when the operation is complete. In an all-reduce,
// all-gather, reduce-scatter or all-to-all all kernels end together, a few
// microseconds apart. So the rank with the shortest time came last, its time is
// the transfer, and the other ranks waited for it for the rest of their times.
// No clocks are compared.
//
// If some ranks of a call were not recorded, the shortest recorded time is at
// least the transfer. If it is clearly longer than usual transfers of this
// size, all recorded ranks waited for a rank without a record. This waiting
// counts, but it is attributed to that rank only if no other rank lacks a
// record. Otherwise the last of the recorded ranks counts as the last of all,
// and the waiting found is at most the true waiting.
//
// A send and its recv end together too; the longer of the two waited for the
// other. The log does not tell which rank is the root of a broadcast or reduce,
// and some ranks may leave such an operation early. So the time of such an
// operation is not split.
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

// Operations of one kind on one communicator. Lists by rank are in the order of
// the streams given.
struct Waits {
  uint64_t calls = 0;
  uint64_t completeCalls = 0; // recorded and timed on all ranks
  uint64_t lostRecords = 0; // records missing in calls that some ranks recorded
  // Number of sequence numbers that no rank recorded, from the first recorded
  // number to the last one.
  uint64_t missingCalls = 0;
  uint64_t unmatchedRecords = 0; // records whose call is not known
  uint64_t untimedRecords = 0;
  uint64_t differentSizes = 0; // calls whose ranks state different sizes
  std::vector<uint64_t> lostCalls; // [rank]: calls whose record is lost
  std::vector<double> timeUs; // [rank]
  // [rank]: the time, including messages without a match. Lost records count
  // with their estimated times (lost_records.h), or with the rank's mean time
  // if there is no estimate. NaN if the rank has no record with a time.
  std::vector<double> wholeTimeUs;
  std::vector<double> waitedUs; // [block, rank]: waiting of the rank
  // [block, rank]: waiting for the rank in this part of the run, summed over
  // the waiting ranks. If several ranks have the shortest time, each gets an
  // equal share.
  std::vector<double> causedUs;
  double unattributedUs = 0; // waiting for ranks without a record
  // [block, rank]: estimated waiting of the rank in calls for which its record
  // is lost.
  std::vector<double> lostWaitUs;
  // [rank, other]: waiting of the other rank for the rank; empty if there are
  // too many ranks.
  std::vector<double> waitersUs;
  std::vector<OfSize> sizes;
  // [block, rank]: in messages without a match, time beyond the usual time of
  // such messages; it counts as waiting for an unknown rank; empty if all
  // messages have a match.
  std::vector<double> unpairedUs;
};

// Splits times into waiting and transfer, for operations in which every rank
// waits for all. Ranks that are not among `streams` were not recorded; `ranks`
// counts them too. The run is cut into `blocks` parts with equally many
// sequence numbers.
Waits splitCollectives(
    std::span<const Stream* const> streams,
    uint64_t ranks,
    uint32_t blocks);

// Splits the times of messages into waiting and transfer. `members[i]` is the
// rank of `sends[i]` and `receives[i]`, either of which may be null.
Waits splitMessages(
    std::span<const int64_t> members,
    std::span<const Stream* const> sends,
    std::span<const Stream* const> receives,
    uint32_t blocks);

// Messages from one member to another, in their order; null where a record is
// lost. `members` holds the indices of the two members.
struct MessagePair {
  uint32_t members[2];
  std::vector<const Record*> records[2];
};

// Splits the times of messages of `members` ranks into waiting and transfer;
// the messages were matched already. If the two records of any message in a
// pair state different sizes, the whole pair is left out. Sets no
// `wholeTimeUs`.
Waits splitPairs(
    size_t members,
    std::span<const MessagePair> pairs,
    uint32_t blocks);

// Sums up operations whose times are not split, such as broadcasts.
Waits unsplit(std::span<const Stream* const> streams);

} // namespace commprof::inspector
