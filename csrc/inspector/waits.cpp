#include "inspector/waits.h"

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "inspector/lost_records.h"
#include "inspector/message_order.h"

namespace commprof::inspector {

namespace {

// With more ranks, a square matrix takes more than 128 MB.
constexpr size_t kMostOfMatrix = 4096;

// A time clearly exceeds the usual transfer if it is longer than kClearly *
// usual transfer + kClearlyUs.
constexpr double kClearly = 1.25;
constexpr double kClearlyUs = 5;
constexpr size_t kEnoughCalls = 10;

// The shortest time of a call is compared with the transfers of the calls that
// all ranks recorded. If this time is longer than this share of the transfers,
// and clearly exceeds the usual transfer, all ranks that recorded the call
// waited.
constexpr double kNearlyAll = 0.99;

struct UsualTransfer {
  // Median transfer of the calls that all ranks recorded. If there are few such
  // calls: a low quantile of the shortest times of the other calls.
  double us = 0;
  // If the shortest time of a call is above this, all ranks that recorded the
  // call waited.
  double mostUs = 0;
  // True if all ranks recorded enough calls. Otherwise it is not known whether
  // a long time is a long transfer or waiting.
  bool isOfComplete = false;
};

// Keyed by size in bytes.
using Usual = std::unordered_map<uint64_t, UsualTransfer>;

double quantile(std::vector<float> values, double part) {
  const auto place =
      values.begin() + std::ptrdiff_t(double(values.size() - 1) * part);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

// Sums up the times and the waiting of calls.
class Ledger {
 public:
  Ledger(
      size_t members,
      uint64_t ranks,
      uint32_t blocks,
      Usual usual = {},
      std::vector<double> causedUs = {})
      : members_(members),
        ranks_(ranks),
        usual_(std::move(usual)),
        lost_(
            causedUs.empty() ? std::vector<double>(members)
                             : std::move(causedUs),
            ranks,
            blocks) {
    waits_.timeUs.resize(members);
    waits_.lostCalls.resize(members);
    waits_.waitedUs.resize(members * blocks);
    waits_.causedUs.resize(members * blocks);
    records_.resize(members * blocks);
    if (members <= kMostOfMatrix) {
      waits_.waitersUs.resize(members * members);
    }
  }

  void add(
      std::span<const uint32_t> members,
      std::span<const float> times,
      std::span<const uint32_t> lost,
      uint64_t sizeBytes,
      uint32_t block) {
    ++waits_.calls;
    const float least = *std::min_element(times.begin(), times.end());
    const bool isComplete = times.size() == ranks_;
    const UsualTransfer* const known = usualTransfer(sizeBytes);
    const bool lastIsMissing =
        !isComplete && known != nullptr && least > known->mostUs;
    const double usual = lastIsMissing ? known->us : least;
    const float shortest = float(usual);
    const auto last = std::count(times.begin(), times.end(), shortest);
    double waitUs = 0;
    double timeUs = 0;
    for (size_t i = 0; i < times.size(); ++i) {
      const double wait = double(times[i]) - shortest;
      waits_.timeUs[members[i]] += times[i];
      ++records_[block * members_ + members[i]];
      waits_.waitedUs[block * members_ + members[i]] += wait;
      waitUs += wait;
      timeUs += times[i];
    }
    if (lastIsMissing && known->isOfComplete && lost.size() == 1 &&
        times.size() + 1 == ranks_) {
      blame(lost[0], 1, shortest, members, times, waitUs, block);
    } else if (lastIsMissing) {
      waits_.unattributedUs += waitUs;
    } else if (waitUs > 0) {
      for (size_t i = 0; i < times.size(); ++i) {
        if (times[i] == shortest) {
          blame(
              members[i],
              double(last),
              shortest,
              members,
              times,
              waitUs,
              block);
        }
      }
    }
    OfSize& size = ofSize(sizeBytes);
    ++size.calls;
    size.records += times.size();
    size.waitUs += waitUs;
    size.timeUs += timeUs;
    if (isComplete) {
      ++waits_.completeCalls;
      size.transfersUs.push_back(least);
    } else {
      incomplete_[sizeBytes].push_back(least);
    }
    if (known != nullptr) {
      lost_.add(members, times, lost, known->us, known->mostUs, block);
    }
  }

  void estimateLost(std::span<const double> callsOfBlock) {
    waits_.lostWaitUs.resize(members_ * callsOfBlock.size());
    for (size_t member = 0; member < members_; ++member) {
      for (uint32_t block = 0; block < callsOfBlock.size(); ++block) {
        const size_t place = block * members_ + member;
        const double untold = callsOfBlock[block] - double(records_[place]) -
            double(lost_.lostIn(member, block));
        waits_.lostWaitUs[place] = lost_.waitUs(member, block) +
            std::max(0.0, untold) * meanWaitUs(member);
      }
    }
  }

  // Sets `wholeTimeUs`. `missing`: number of calls that are in no log.
  void estimateWhole(uint64_t missing) {
    const uint64_t calls = waits_.calls + missing;
    waits_.missingCalls = missing;
    waits_.wholeTimeUs.resize(members_);
    for (size_t member = 0; member < members_ && calls > 0; ++member) {
      const double records = double(recordsOf(member));
      const double untold =
          std::max(0.0, double(calls) - records - double(lost_.lost(member)));
      waits_.wholeTimeUs[member] = records > 0
          ? waits_.timeUs[member] * (1 + untold / records) +
              lost_.timeUs(member)
          : std::numeric_limits<double>::quiet_NaN();
    }
  }

  const LostRecords& lost() const {
    return lost_;
  }

  std::vector<double> causedUs() const {
    std::vector<double> total(members_);
    for (size_t place = 0; place < waits_.causedUs.size(); ++place) {
      total[place % members_] += waits_.causedUs[place];
    }
    return total;
  }

  // Returns the usual transfers by size, for use in a second pass; empty if all
  // ranks recorded all calls.
  Usual usualTransfers() const {
    Usual usual;
    for (const auto& [bytes, times] : incomplete_) {
      const auto known = sizes_.find(bytes);
      const bool isKnown = known != sizes_.end() &&
          known->second.transfersUs.size() >= kEnoughCalls;
      if (isKnown) {
        const auto& transfers = known->second.transfersUs;
        const double us = quantile(transfers, 0.5);
        const double most = quantile(transfers, kNearlyAll);
        usual[bytes] = {us, std::max(clearlyAbove(us), most), true};
      } else {
        const double us = quantile(times, 0.1);
        usual[bytes] = {us, clearlyAbove(us), false};
      }
    }
    return usual;
  }

  Waits& waits() {
    return waits_;
  }
  uint64_t ranks() const {
    return ranks_;
  }

  Waits take() {
    for (auto& [bytes, size] : sizes_) {
      waits_.sizes.push_back(std::move(size));
    }
    std::sort(
        waits_.sizes.begin(),
        waits_.sizes.end(),
        [](const auto& a, const auto& b) { return a.sizeBytes < b.sizeBytes; });
    return std::move(waits_);
  }

 private:
  uint64_t recordsOf(size_t member) const {
    uint64_t records = 0;
    for (size_t place = member; place < records_.size(); place += members_) {
      records += records_[place];
    }
    return records;
  }

  double meanWaitUs(size_t member) const {
    double waitedUs = 0;
    for (size_t place = member; place < records_.size(); place += members_) {
      waitedUs += waits_.waitedUs[place];
    }
    const uint64_t records = recordsOf(member);
    return records > 0 ? waitedUs / double(records) : 0;
  }

  void blame(
      uint32_t late,
      double shares,
      float shortest,
      std::span<const uint32_t> members,
      std::span<const float> times,
      double waitUs,
      uint32_t block) {
    waits_.causedUs[block * members_ + late] += waitUs / shares;
    if (waits_.waitersUs.empty()) {
      return;
    }
    for (size_t i = 0; i < times.size(); ++i) {
      waits_.waitersUs[late * members_ + members[i]] +=
          (double(times[i]) - shortest) / shares;
    }
  }

  OfSize& ofSize(uint64_t bytes) {
    if (newest_ == nullptr || newest_->sizeBytes != bytes) {
      newest_ = &sizes_[bytes];
      newest_->sizeBytes = bytes;
    }
    return *newest_;
  }

  static double clearlyAbove(double usual) {
    return kClearly * usual + kClearlyUs;
  }

  // Null if the usual transfer is not known.
  const UsualTransfer* usualTransfer(uint64_t sizeBytes) const {
    if (usual_.empty()) {
      return nullptr;
    }
    const auto known = usual_.find(sizeBytes);
    return known == usual_.end() ? nullptr : &known->second;
  }

  const size_t members_;
  const uint64_t ranks_;
  const Usual usual_;
  Waits waits_;
  // [block, member]: number of records with a time.
  std::vector<uint64_t> records_;
  LostRecords lost_;
  std::unordered_map<uint64_t, OfSize> sizes_;
  // Shortest times of the calls that some ranks did not record, by size.
  std::unordered_map<uint64_t, std::vector<float>> incomplete_;
  OfSize* newest_ = nullptr;
};

bool isAscending(const Stream& stream) {
  const auto& records = stream.records;
  return std::adjacent_find(
             records.begin(), records.end(), [](const auto& a, const auto& b) {
               return a.number >= b.number;
             }) == records.end();
}

// Records of one rank, in an order that is the same on all ranks. A replayed
// CUDA graph repeats the numbers of its capture. Records with the same number
// are ordered by their occurrence.
struct Ordered {
  const Stream* stream;
  // Both lists are empty if the numbers rise from record to record. `turns`:
  // how often a record's number occurred before. `order`: indices of the
  // records.
  std::vector<uint32_t> turns;
  std::vector<uint32_t> order;

  size_t size() const {
    return stream->records.size();
  }
  const Record& record(size_t i) const {
    return stream->records[order.empty() ? i : order[i]];
  }
  uint64_t key(size_t i) const {
    const size_t place = order.empty() ? i : order[i];
    const uint64_t turn = turns.empty() ? 0 : turns[place];
    return turn << 32 | stream->records[place].number;
  }
};

Ordered ordered(const Stream& stream) {
  Ordered result{&stream, {}, {}};
  if (isAscending(stream)) {
    return result;
  }
  std::unordered_map<uint32_t, uint32_t> times;
  result.turns.reserve(result.size());
  for (const Record& record : stream.records) {
    result.turns.push_back(times[record.number]++);
  }
  std::vector<uint32_t> order(result.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return result.key(a) < result.key(b);
  });
  result.order = std::move(order);
  return result;
}

// Returns the numbers that some ranks recorded more often than others. It is
// not known to which replay of a graph such records belong.
std::unordered_set<uint32_t> ambiguous(std::span<const Ordered> ranks) {
  std::unordered_map<uint32_t, std::pair<uint32_t, uint32_t>> least_most;
  std::unordered_map<uint32_t, uint32_t> times;
  for (const Ordered& rank : ranks) {
    times.clear();
    for (const Record& record : rank.stream->records) {
      ++times[record.number];
    }
    for (const auto& [number, count] : times) {
      auto [known, isNew] = least_most.try_emplace(number, count, count);
      known->second.first = std::min(known->second.first, count);
      known->second.second = std::max(known->second.second, count);
    }
  }
  std::unordered_set<uint32_t> result;
  for (const auto& [number, range] : least_most) {
    if (range.first != range.second && range.second > 1) {
      result.insert(number);
    }
  }
  return result;
}

// Divides the run into equal blocks, and finds the block of a call. A call is
// given by its key (Ordered::key()): its sequence number and, in the upper 32
// bits, how often this number occurred before.
class Blocks {
 public:
  Blocks(std::span<const Ordered> ranks, uint32_t blocks) : blocks_(blocks) {
    uint64_t last = 0;
    for (const Ordered& rank : ranks) {
      for (const Record& record : rank.stream->records) {
        first_ = std::min(first_, record.number);
        last = std::max<uint64_t>(last, record.number);
      }
      for (uint32_t turn : rank.turns) {
        turns_ = std::max<uint64_t>(turns_, turn + uint64_t(1));
      }
    }
    numbers_ = last >= first_ ? last - first_ + 1 : 1;
  }

  uint32_t blocks() const {
    return blocks_;
  }

  bool isOneTurn() const {
    return turns_ == 1;
  }

  // Returns the number of sequence numbers from the first to the last recorded
  // one.
  uint64_t numbers() const {
    return numbers_;
  }

  // Counts the sequence numbers after `before` and below `key` as calls of
  // their blocks. Call it only if isOneTurn().
  void addBetween(uint64_t before, uint64_t key, std::span<double> calls)
      const {
    const uint64_t begin = before + 1 - first_;
    const uint64_t end = key - first_;
    for (uint32_t block = of(before); block <= of(key); ++block) {
      const uint64_t first = std::max(begin, firstOf(block));
      const uint64_t last = std::min(end, firstOf(block + 1));
      calls[block] += double(last > first ? last - first : 0);
    }
  }

  uint32_t of(uint64_t key) const {
    const double number = double((key & 0xffffffffU) - first_);
    const double part =
        (double(key >> 32) + number / double(numbers_)) / double(turns_);
    return std::min(blocks_ - 1, uint32_t(part * blocks_));
  }

 private:
  // Returns the first number of a block, relative to the first number of the
  // run.
  uint64_t firstOf(uint32_t block) const {
    return (block * numbers_ + blocks_ - 1) / blocks_;
  }

  const uint32_t blocks_;
  uint32_t first_ = std::numeric_limits<uint32_t>::max();
  uint64_t numbers_ = 1;
  uint64_t turns_ = 1;
};

// Adds calls, in order, to a ledger. `unclear`: sequence numbers that are left
// out of the ledger. Returns the number of all calls.
uint64_t addCalls(
    std::span<const Ordered> members,
    const std::unordered_set<uint32_t>& unclear,
    const Blocks& cut,
    Ledger& ledger) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  std::vector<size_t> next(members.size(), 0);
  std::vector<uint64_t> keys(members.size(), kNone);
  for (size_t i = 0; i < members.size(); ++i) {
    keys[i] = members[i].size() > 0 ? members[i].key(0) : kNone;
  }
  std::vector<uint32_t> present;
  std::vector<uint32_t> absent;
  std::vector<uint32_t> lost; // including ranks whose record has no time
  std::vector<float> times;
  uint64_t calls = 0;
  std::vector<double> callsOfBlock(cut.blocks());
  uint64_t before = kNone;
  while (true) {
    const uint64_t key = *std::min_element(keys.begin(), keys.end());
    if (key == kNone) {
      break;
    }
    ++calls;
    ++callsOfBlock[cut.of(key)];
    // If calls are replayed, a number that no rank recorded may be no call.
    if (before != kNone && cut.isOneTurn()) {
      cut.addBetween(before, key, callsOfBlock);
    }
    before = key;
    present.clear();
    absent.clear();
    lost.clear();
    times.clear();
    uint64_t recorded = 0;
    uint64_t sizeBytes = 0;
    bool isOneSize = true;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      if (keys[i] != key) {
        absent.push_back(i);
        lost.push_back(i);
        continue;
      }
      const Record& record = members[i].record(next[i]);
      isOneSize = isOneSize && (recorded == 0 || record.sizeBytes == sizeBytes);
      sizeBytes = record.sizeBytes;
      ++recorded;
      if (record.timeUs >= 0) {
        present.push_back(i);
        times.push_back(record.timeUs);
      } else {
        lost.push_back(i);
      }
      ++next[i];
      keys[i] = next[i] < members[i].size() ? members[i].key(next[i]) : kNone;
    }
    Waits& waits = ledger.waits();
    waits.untimedRecords += recorded - times.size();
    if (!unclear.empty() && unclear.count(uint32_t(key)) > 0) {
      waits.unmatchedRecords += recorded;
    } else if (!isOneSize) {
      ++waits.differentSizes;
    } else if (!times.empty()) {
      ledger.add(present, times, lost, sizeBytes, cut.of(key));
      waits.lostRecords += ledger.ranks() - recorded;
      for (uint32_t i : absent) {
        ++waits.lostCalls[i];
      }
    }
  }
  ledger.estimateLost(callsOfBlock);
  return calls;
}

} // namespace

Waits splitCollectives(
    std::span<const Stream* const> streams,
    uint64_t ranks,
    uint32_t blocks) {
  std::vector<Ordered> members;
  bool hasTurns = false;
  for (const Stream* stream : streams) {
    members.push_back(ordered(*stream));
    hasTurns = hasTurns || !members.back().turns.empty();
  }
  std::unordered_set<uint32_t> unclear;
  if (hasTurns) {
    unclear = ambiguous(members);
  }
  const Blocks cut(members, blocks);
  Ledger ledger(members.size(), ranks, blocks);
  const uint64_t calls = addCalls(members, unclear, cut, ledger);
  // If calls are replayed, some sequence numbers may be no calls.
  const uint64_t missing = hasTurns || calls == 0 ? 0 : cut.numbers() - calls;
  ledger.estimateWhole(missing);
  const Usual usual = ledger.usualTransfers();
  if (usual.empty()) {
    return ledger.take();
  }
  Ledger again(members.size(), ranks, blocks, usual, ledger.causedUs());
  addCalls(members, unclear, cut, again);
  again.estimateWhole(missing);
  return again.take();
}

Waits unsplit(std::span<const Stream* const> streams) {
  Waits waits;
  waits.timeUs.resize(streams.size());
  std::map<uint64_t, OfSize> sizes;
  for (size_t i = 0; i < streams.size(); ++i) {
    for (const Record& record : streams[i]->records) {
      if (record.timeUs < 0) {
        ++waits.untimedRecords;
        continue;
      }
      OfSize& size = sizes[record.sizeBytes];
      size.sizeBytes = record.sizeBytes;
      ++size.calls;
      ++size.records;
      size.timeUs += record.timeUs;
      waits.timeUs[i] += record.timeUs;
    }
    waits.calls = std::max<uint64_t>(waits.calls, streams[i]->records.size());
  }
  waits.wholeTimeUs = waits.timeUs;
  for (auto& [bytes, size] : sizes) {
    waits.sizes.push_back(std::move(size));
  }
  return waits;
}

namespace {

// Records of one rank's messages, by peer and in order; null for a lost record.
using ByPeer = std::unordered_map<int32_t, std::vector<const Record*>>;

struct OfRank {
  ByPeer sent;
  ByPeer received;
  uint64_t messages = 0; // number of messages, with or without a record
};

// Returns the sequence number of the first message: 0 or 1, equal on all ranks.
uint32_t firstNumber(
    std::span<const Stream* const> sends,
    std::span<const Stream* const> receives) {
  uint32_t first = 1;
  for (const auto& streams : {sends, receives}) {
    for (const Stream* stream : streams) {
      first = std::min(first, leastNumber(stream));
    }
  }
  return first;
}

// `first`: result of firstNumber().
OfRank messagesOf(const Stream* sends, const Stream* receives, uint32_t first) {
  OfRank of;
  const std::vector<Message> recorded = byNumber(sends, receives);
  if (recorded.empty()) {
    return of;
  }
  for (const Message& message : messagesInOrder(recorded, first).messages) {
    (message.isSend ? of.sent : of.received)[message.peer].push_back(
        message.record);
  }
  of.messages =
      std::max(recorded.size(), recorded.back().number - first + size_t(1));
  return of;
}

// Collects messages whose other end is not recorded. The time beyond the usual
// time of messages of the same size counts as waiting for an unknown rank.
class Unpaired {
 public:
  void add(const Record& record, uint32_t member, uint32_t block) {
    if (record.timeUs >= 0) {
      times_[record.sizeBytes].push_back(record.timeUs);
      found_.push_back({record, member, block});
    }
  }

  void moveTo(Waits& waits, size_t members, uint32_t blocks) {
    if (found_.empty()) {
      return;
    }
    std::unordered_map<uint64_t, double> usual;
    for (const auto& [bytes, times] : times_) {
      usual[bytes] = quantile(times, 0.1);
    }
    waits.unpairedUs.resize(members * blocks);
    for (const auto& [record, member, block] : found_) {
      waits.unpairedUs[block * members + member] +=
          std::max(0.0, record.timeUs - usual[record.sizeBytes]);
    }
  }

 private:
  struct Found {
    Record record;
    uint32_t member;
    uint32_t block;
  };

  std::unordered_map<uint64_t, std::vector<float>> times_;
  std::vector<Found> found_;
};

bool isLost(const Record* record) {
  return record == nullptr;
}

// Lost records are ignored.
bool haveEqualSizes(const MessagePair& pair) {
  return std::equal(
      pair.records[0].begin(),
      pair.records[0].end(),
      pair.records[1].begin(),
      pair.records[1].end(),
      [](const Record* a, const Record* b) {
        return isLost(a) || isLost(b) || a->sizeBytes == b->sizeBytes;
      });
}

// Makes the two lists of a pair equally long. Returns false if the lists cannot
// be of the same messages: sizes differ, or the lengths differ although no
// record is lost.
bool makeAlike(MessagePair& pair) {
  auto& [sent, received] = pair.records;
  if (sent.size() != received.size() &&
      std::none_of(sent.begin(), sent.end(), isLost) &&
      std::none_of(received.begin(), received.end(), isLost)) {
    return false;
  }
  sent.resize(std::max(sent.size(), received.size()), nullptr);
  received.resize(sent.size(), nullptr);
  return haveEqualSizes(pair);
}

// Adds the messages of all pairs to a ledger. Returns the number of their
// records.
uint64_t addMessages(
    std::span<const MessagePair> pairs,
    uint32_t blocks,
    Ledger& ledger) {
  uint64_t matched = 0;
  for (const MessagePair& pair : pairs) {
    const size_t count = pair.records[0].size();
    for (size_t k = 0; k < count; ++k) {
      std::vector<uint32_t> present;
      std::vector<uint32_t> lost;
      std::vector<float> times;
      uint64_t sizeBytes = 0;
      uint64_t untimed = 0;
      for (size_t side = 0; side < 2; ++side) {
        const Record* const record = pair.records[side][k];
        matched += record != nullptr;
        untimed += record != nullptr && record->timeUs < 0;
        if (record == nullptr || record->timeUs < 0) {
          lost.push_back(pair.members[side]);
          continue;
        }
        present.push_back(pair.members[side]);
        times.push_back(record->timeUs);
        sizeBytes = record->sizeBytes;
      }
      ledger.waits().untimedRecords += untimed;
      if (!times.empty()) {
        ledger.add(
            present, times, lost, sizeBytes, uint32_t(k * blocks / count));
        ledger.waits().lostRecords += lost.size() - untimed;
      }
    }
  }
  return matched;
}

void estimateWholeOfMessages(
    std::span<const OfRank> ranks,
    std::span<const Stream* const> sends,
    std::span<const Stream* const> receives,
    Ledger& ledger) {
  auto& whole = ledger.waits().wholeTimeUs;
  whole.assign(ranks.size(), 0);
  for (size_t i = 0; i < ranks.size(); ++i) {
    uint64_t timed = 0;
    double timeUs = 0;
    for (const Stream* stream : {sends[i], receives[i]}) {
      for (size_t k = 0; stream != nullptr && k < stream->records.size(); ++k) {
        const float time = stream->records[k].timeUs;
        timed += time >= 0;
        timeUs += time >= 0 ? time : 0;
      }
    }
    const double untold = std::max(
        0.0,
        double(ranks[i].messages) - double(timed) -
            double(ledger.lost().lost(i)));
    if (timed > 0) {
      whole[i] =
          timeUs * (1 + untold / double(timed)) + ledger.lost().timeUs(i);
    } else if (ranks[i].messages > 0) {
      whole[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

// Returns a ledger with the messages of all pairs. If the first pass finds
// usual transfers, a second pass uses them. Sets `matched` to the number of
// records of these messages.
Ledger ledgerOf(
    size_t members,
    std::span<const MessagePair> pairs,
    uint32_t blocks,
    uint64_t& matched) {
  Ledger ledger(members, 2, blocks);
  matched = addMessages(pairs, blocks, ledger);
  const Usual usual = ledger.usualTransfers();
  if (usual.empty()) {
    return ledger;
  }
  Ledger again(members, 2, blocks, usual, ledger.causedUs());
  addMessages(pairs, blocks, again);
  return again;
}

} // namespace

Waits splitMessages(
    std::span<const int64_t> members,
    std::span<const Stream* const> sends,
    std::span<const Stream* const> receives,
    uint32_t blocks) {
  const uint32_t first = firstNumber(sends, receives);
  std::unordered_map<int64_t, uint32_t> places;
  std::vector<OfRank> ranks;
  uint64_t all = 0;
  for (uint32_t i = 0; i < members.size(); ++i) {
    places[members[i]] = i;
    ranks.push_back(messagesOf(sends[i], receives[i], first));
    for (const Stream* stream : {sends[i], receives[i]}) {
      all += stream == nullptr ? 0 : stream->records.size();
    }
  }
  std::vector<MessagePair> pairs;
  // Pairs of a member and a peer: [0] sends were matched, [1] recvs were
  // matched.
  std::set<std::pair<uint32_t, int64_t>> paired[2];
  for (uint32_t i = 0; i < members.size(); ++i) {
    for (auto& [peer, sent] : ranks[i].sent) {
      const auto place = places.find(peer);
      if (place == places.end()) {
        continue;
      }
      auto& received = ranks[place->second].received;
      const auto got = received.find(int32_t(members[i]));
      if (got == received.end()) {
        continue;
      }
      MessagePair pair{{i, place->second}, {sent, got->second}};
      if (makeAlike(pair)) {
        pairs.push_back(std::move(pair));
        paired[0].emplace(i, peer);
        paired[1].emplace(place->second, members[i]);
      }
    }
  }
  uint64_t matched = 0;
  Ledger last = ledgerOf(members.size(), pairs, blocks, matched);
  estimateWholeOfMessages(ranks, sends, receives, last);
  last.waits().unmatchedRecords = all - matched;
  Unpaired unpaired;
  for (uint32_t i = 0; i < members.size(); ++i) {
    const Stream* const both[] = {sends[i], receives[i]};
    for (size_t side = 0; side < 2; ++side) {
      const size_t count =
          both[side] == nullptr ? 0 : both[side]->records.size();
      for (size_t k = 0; k < count; ++k) {
        if (paired[side].count({i, both[side]->peers[k]}) == 0) {
          unpaired.add(both[side]->records[k], i, uint32_t(k * blocks / count));
        }
      }
    }
  }
  unpaired.moveTo(last.waits(), members.size(), blocks);
  return last.take();
}

Waits splitPairs(
    size_t members,
    std::span<const MessagePair> pairs,
    uint32_t blocks) {
  std::vector<MessagePair> alike;
  uint64_t different = 0;
  for (const MessagePair& pair : pairs) {
    if (haveEqualSizes(pair)) {
      alike.push_back(pair);
      continue;
    }
    for (const auto& records : pair.records) {
      different += records.size() -
          uint64_t(std::count_if(records.begin(), records.end(), isLost));
    }
  }
  uint64_t matched = 0;
  Waits waits = ledgerOf(members, alike, blocks, matched).take();
  waits.unmatchedRecords = different;
  return waits;
}

} // namespace commprof::inspector
