#include "inspector/follow.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "inspector/message_order.h"

namespace commprof::inspector {

namespace {

// If more than this many messages follow a lost message, and no repeated
// sequence tells which message was lost (message_order.h), the order counts as
// unknown.
constexpr size_t kMostAhead = 4096;
// Messages may complete out of order. A missing number counts as lost once the
// highest recorded number is larger by at least this much, and by at least the
// length of the repeated sequence.
constexpr size_t kMayBeLate = 32;
// At least this many of the latest messages are kept, to find the repeated
// sequence.
constexpr size_t kMostLatest = 1024;
// Largest number of messages that wait for the records of one peer.
constexpr size_t kMostWaiting = size_t(1) << 16;

Stream* streamWith(Communicator& member, const std::string& kind) {
  const auto found = member.streams.find(kind);
  return found == member.streams.end() ? nullptr : &found->second;
}

bool risesThroughout(const Stream& stream) {
  return std::is_sorted(
      stream.records.begin(),
      stream.records.end(),
      [](const Record& a, const Record& b) { return a.number <= b.number; });
}

// Moves the records for which `isTaken(index)` is true to a new stream.
template <class IsTaken>
Stream takenFrom(Stream& stream, IsTaken isTaken) {
  Stream taken;
  size_t kept = 0;
  const bool hasPeers = !stream.peers.empty();
  for (size_t i = 0; i < stream.records.size(); ++i) {
    const Record record = stream.records[i];
    const int32_t peer = hasPeers ? stream.peers[i] : 0;
    if (isTaken(i)) {
      taken.records.push_back(record);
      if (hasPeers) {
        taken.peers.push_back(peer);
      }
    } else {
      stream.records[kept] = record;
      if (hasPeers) {
        stream.peers[kept] = peer;
      }
      ++kept;
    }
  }
  stream.records.resize(kept);
  stream.peers.resize(hasPeers ? kept : 0);
  return taken;
}

std::vector<const Stream*> pointersTo(const std::vector<Stream>& streams) {
  std::vector<const Stream*> pointers;
  for (const Stream& stream : streams) {
    pointers.push_back(&stream);
  }
  return pointers;
}

// Returns the sequence number of the first message: 0 or 1, equal on all
// members.
uint32_t firstOfMembers(std::span<Communicator* const> members) {
  uint32_t first = 1;
  for (Communicator* member : members) {
    if (member->messages.first >= 0) {
      first = std::min(first, uint32_t(member->messages.first));
    }
    for (const char* kind : {"Send", "Recv"}) {
      first = std::min(first, leastNumber(streamWith(*member, kind)));
    }
  }
  return first;
}

void append(const Message& message, FollowedMessages& of) {
  auto& queue = (message.isSend ? of.sent : of.received)[message.peer].messages;
  queue.emplace_back();
  if (message.record != nullptr) {
    queue.back() = *message.record;
  }
  of.latest.push_back({message.number, message.peer, message.isSend, nullptr});
  of.next = int64_t(message.number) + 1;
}

// Moves a member's messages from its streams to its ordered messages, as far as
// their order is known. Returns the number of records that cannot be ordered.
uint64_t putInOrder(Communicator& member, uint32_t first) {
  Stream* const sends = streamWith(member, "Send");
  Stream* const receives = streamWith(member, "Recv");
  std::vector<Message> recorded = byNumber(sends, receives);
  if (recorded.empty()) {
    return 0;
  }
  FollowedMessages& of = member.messages;
  if (of.first < 0) {
    of.first = of.next = first;
  }
  // Records before `message` came too late: they already count as lost.
  auto message = std::find_if(
      recorded.begin(), recorded.end(), [&](const Message& candidate) {
        return int64_t(candidate.number) >= of.next;
      });
  uint64_t unmatched = uint64_t(message - recorded.begin());
  while (!of.isUnordered && message != recorded.end() &&
         int64_t(message->number) == of.next) {
    append(*message++, of);
  }
  if (message != recorded.end()) { // a record is lost, or late
    const MessageOrder order = messagesInOrder(
        {message, recorded.end()}, uint32_t(of.next), of.latest);
    const bool comesTwice =
        std::adjacent_find(
            recorded.begin(), recorded.end(), [](const auto& a, const auto& b) {
              return a.number == b.number;
            }) != recorded.end();
    of.isUnordered = of.isUnordered || comesTwice ||
        (order.messages.empty() &&
         recorded.end() - message > std::ptrdiff_t(kMostAhead));
    for (const Message& next : order.messages) {
      const bool mayBeLate = next.record == nullptr &&
          recorded.back().number - next.number <
              std::max(order.turn, kMayBeLate);
      if (of.isUnordered || mayBeLate) {
        break;
      }
      append(next, of);
    }
  }
  if (of.isUnordered) {
    unmatched += uint64_t(recorded.end() - message);
    of.next = int64_t(recorded.back().number) + 1;
    of.latest.clear();
  }
  if (of.latest.size() > 2 * kMostLatest) {
    of.latest.erase(of.latest.begin(), of.latest.end() - kMostLatest);
  }
  for (Stream* stream : {sends, receives}) {
    if (stream != nullptr) {
      takenFrom(*stream, [&](size_t i) {
        return int64_t(stream->records[i].number) < of.next;
      });
    }
  }
  return unmatched;
}

// Drops the first `count` messages of a queue. Returns the number of their
// records.
uint64_t dropFirst(MessageQueue& queue, uint64_t count) {
  const auto begin = queue.messages.begin();
  const auto end = begin + std::ptrdiff_t(count);
  const auto records = std::count_if(
      begin, end, [](const auto& record) { return record.has_value(); });
  queue.messages.erase(begin, end);
  queue.dropped += count;
  return uint64_t(records);
}

// Messages from one member to another, taken from the queues of both members.
struct Taken {
  uint32_t members[2];
  std::vector<std::optional<Record>> records[2];
};

// Index of each member, by rank.
using Places = std::unordered_map<int64_t, uint32_t>;

// Drops messages that cannot be matched, because a member's order is not known
// or a rank has no log. Also drops the oldest messages of queues that are
// longer than kMostWaiting. Returns the number of dropped records.
uint64_t dropUnmatched(
    std::span<Communicator* const> members,
    const Places& places) {
  uint64_t dropped = 0;
  for (Communicator* member : members) {
    FollowedMessages& of = member->messages;
    for (auto* queues : {&of.sent, &of.received}) {
      for (auto& [peer, queue] : *queues) {
        const auto place = places.find(peer);
        const bool mayMatch = !of.isUnordered && place != places.end() &&
            !members[place->second]->messages.isUnordered;
        const size_t count = queue.messages.size();
        dropped += dropFirst(
            queue, count - std::min(count, mayMatch ? kMostWaiting : 0));
      }
    }
  }
  return dropped;
}

// Takes the messages that are in the queues of both members. If one member
// dropped messages, also drops these at the other member, and adds the number
// of their records to `unmatched`.
std::vector<Taken> takePairs(
    std::span<Communicator* const> members,
    const Places& places,
    uint64_t& unmatched) {
  std::vector<Taken> taken;
  for (uint32_t i = 0; i < members.size(); ++i) {
    for (auto& [peer, sent] : members[i]->messages.sent) {
      const auto place = places.find(peer);
      if (place == places.end()) {
        continue;
      }
      FollowedMessages& other = members[place->second]->messages;
      const auto got = other.received.find(int32_t(members[i]->rank));
      if (got == other.received.end()) {
        continue;
      }
      MessageQueue* const queues[] = {&sent, &got->second};
      const uint64_t first = std::max(sent.dropped, got->second.dropped);
      for (MessageQueue* queue : queues) {
        unmatched += dropFirst(
            *queue,
            std::min<uint64_t>(queue->messages.size(), first - queue->dropped));
      }
      if (sent.dropped != got->second.dropped) {
        // One member has yet to write the messages that the other dropped.
        continue;
      }
      const auto count = std::ptrdiff_t(
          std::min(sent.messages.size(), got->second.messages.size()));
      taken.push_back({{i, place->second}, {}});
      for (size_t side = 0; side < 2; ++side) {
        auto& messages = queues[side]->messages;
        taken.back().records[side].assign(
            messages.begin(), messages.begin() + count);
        messages.erase(messages.begin(), messages.begin() + count);
      }
    }
  }
  return taken;
}

MessagePair pairOf(const Taken& taken) {
  MessagePair pair{{taken.members[0], taken.members[1]}, {}};
  for (size_t side = 0; side < 2; ++side) {
    for (const std::optional<Record>& record : taken.records[side]) {
      pair.records[side].push_back(record ? &*record : nullptr);
    }
  }
  return pair;
}

Waits takeAllMessages(std::span<Communicator* const> members, uint32_t blocks) {
  std::vector<int64_t> ranks;
  std::vector<Stream> sends;
  std::vector<Stream> receives;
  const auto all = [](size_t) { return true; };
  for (Communicator* member : members) {
    ranks.push_back(member->rank);
    for (auto* kind : {&sends, &receives}) {
      Stream* const stream =
          streamWith(*member, kind == &sends ? "Send" : "Recv");
      kind->push_back(stream == nullptr ? Stream() : takenFrom(*stream, all));
    }
  }
  return splitMessages(ranks, pointersTo(sends), pointersTo(receives), blocks);
}

} // namespace

Waits takeCollectives(
    std::span<Communicator* const> members,
    std::span<const uint8_t> isFollowed,
    const std::string& kind,
    uint64_t ranks,
    uint32_t blocks) {
  static const Stream none;
  uint32_t over = std::numeric_limits<uint32_t>::max();
  size_t fewest = std::numeric_limits<size_t>::max();
  bool isRising = true;
  for (size_t i = 0; i < members.size(); ++i) {
    const Stream* const stream = streamWith(*members[i], kind);
    const auto& records = stream == nullptr ? none.records : stream->records;
    if (isFollowed[i] != 0) {
      over = records.empty() ? 0 : std::min(over, records.back().number);
      fewest = std::min(fewest, records.size());
    }
    isRising = isRising && (stream == nullptr || risesThroughout(*stream));
  }
  std::vector<Stream> taken;
  for (Communicator* member : members) {
    member->isCounted = true;
    Stream* const stream = streamWith(*member, kind);
    if (stream == nullptr || fewest == 0) {
      taken.emplace_back();
      continue;
    }
    // Replays of a graph repeat sequence numbers. If the numbers of a member do
    // not rise, the first `fewest` calls of each member are taken.
    taken.push_back(takenFrom(*stream, [&](size_t i) {
      return isRising ? stream->records[i].number <= over : i < fewest;
    }));
  }
  return splitCollectives(pointersTo(taken), ranks, blocks);
}

Waits takeMessages(
    std::span<Communicator* const> members,
    uint32_t blocks,
    bool isAll) {
  for (Communicator* member : members) {
    member->isCounted = true;
  }
  if (isAll) {
    return takeAllMessages(members, blocks);
  }
  const uint32_t first = firstOfMembers(members);
  uint64_t unmatched = 0;
  for (Communicator* member : members) {
    unmatched += putInOrder(*member, first);
  }
  Places places;
  for (uint32_t i = 0; i < members.size(); ++i) {
    places[members[i]->rank] = i;
  }
  unmatched += dropUnmatched(members, places);
  const std::vector<Taken> taken = takePairs(members, places, unmatched);
  std::vector<MessagePair> pairs;
  for (const Taken& messages : taken) {
    pairs.push_back(pairOf(messages));
  }
  Waits waits = splitPairs(members.size(), pairs, blocks);
  waits.unmatchedRecords += unmatched;
  return waits;
}

Waits takeUnsplit(
    std::span<Communicator* const> members,
    const std::string& kind) {
  std::vector<Stream> taken;
  for (Communicator* member : members) {
    member->isCounted = true;
    Stream* const stream = streamWith(*member, kind);
    taken.push_back(
        stream == nullptr ? Stream()
                          : takenFrom(*stream, [](size_t) { return true; }));
  }
  return unsplit(pointersTo(taken));
}

} // namespace commprof::inspector
