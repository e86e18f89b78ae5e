#include "inspector/follow.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace commprof::inspector {

namespace {

// A number is lost, and not only late, if so many later ones were written.
constexpr size_t kMostAhead = 4096;

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

// Moves the records that `isTaken(place)` is true for to a new stream.
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

// Messages of one member in the order of their numbers.
class Messages {
 public:
  explicit Messages(Communicator& member)
      : member_(&member),
        streams_{streamWith(member, "Send"), streamWith(member, "Recv")} {
    for (uint8_t kind = 0; kind < 2; ++kind) {
      const Stream* const stream = streams_[kind];
      for (uint32_t i = 0; stream != nullptr && i < stream->records.size();
           ++i) {
        all_.push_back({stream->records[i].number, i, kind});
      }
      isTaken_[kind].resize(stream == nullptr ? 0 : stream->records.size());
    }
    std::sort(all_.begin(), all_.end(), [](const auto& a, const auto& b) {
      return a.number < b.number;
    });
    findWhole();
  }

  bool lostOne() const {
    return member_->hasLostMessages;
  }
  int64_t rank() const {
    return member_->rank;
  }
  size_t size() const {
    return all_.size();
  }

  // Places of the messages with each peer, of those before which none is
  // missing, in order. `kind` is 0 for sends and 1 for recvs.
  std::unordered_map<int32_t, std::vector<uint32_t>> byPeer(uint8_t kind) {
    std::unordered_map<int32_t, std::vector<uint32_t>> result;
    for (size_t i = 0; i < whole_; ++i) {
      if (all_[i].kind == kind) {
        result[streams_[kind]->peers[all_[i].place]].push_back(all_[i].place);
      }
    }
    return result;
  }

  uint64_t sizeBytes(uint8_t kind, uint32_t place) const {
    return streams_[kind]->records[place].sizeBytes;
  }

  void mark(uint8_t kind, uint32_t place) {
    isTaken_[kind][place] = 1;
  }

  Stream take(uint8_t kind) {
    if (streams_[kind] == nullptr) {
      return {};
    }
    // Of equal peers in the order of their numbers.
    Stream taken;
    for (const Entry& entry : all_) {
      if (entry.kind == kind && isTaken_[kind][entry.place] != 0) {
        taken.records.push_back(streams_[kind]->records[entry.place]);
        taken.peers.push_back(streams_[kind]->peers[entry.place]);
      }
    }
    takenFrom(*streams_[kind], [&](size_t i) {
      return isTaken_[kind][i] != 0 || lostOne();
    });
    return taken;
  }

 private:
  struct Entry {
    uint32_t number;
    uint32_t place;
    uint8_t kind;
  };

  // Finds how many messages have no gap before them.
  void findWhole() {
    if (member_->hasLostMessages || all_.empty()) {
      return;
    }
    int64_t expected = member_->nextMessage;
    if (expected < 0) { // numbers begin at 0 or 1
      expected = all_.front().number;
      member_->hasLostMessages = expected > 1;
    }
    for (const Entry& entry : all_) {
      if (entry.number > expected) {
        break;
      }
      // Those below were whole before, and wait for their peers.
      member_->hasLostMessages = member_->hasLostMessages ||
          (whole_ > 0 && all_[whole_ - 1].number == entry.number);
      expected = std::max(expected, int64_t(entry.number) + 1);
      ++whole_;
    }
    member_->hasLostMessages =
        member_->hasLostMessages || all_.size() - whole_ > kMostAhead;
    member_->nextMessage = expected;
    if (member_->hasLostMessages) {
      whole_ = 0;
    }
  }

  Communicator* member_;
  Stream* streams_[2];
  std::vector<Entry> all_;
  std::vector<uint8_t> isTaken_[2];
  size_t whole_ = 0;
};

// Marks the messages of two members that both wrote; returns their number.
uint64_t markPairs(std::vector<Messages>& members) {
  uint64_t marked = 0;
  std::unordered_map<int64_t, size_t> places;
  std::vector<std::unordered_map<int32_t, std::vector<uint32_t>>> received;
  for (size_t i = 0; i < members.size(); ++i) {
    places[members[i].rank()] = i;
    received.push_back(members[i].byPeer(1));
  }
  for (Messages& sender : members) {
    for (const auto& [peer, sent] : sender.byPeer(0)) {
      const auto place = places.find(peer);
      if (place == places.end()) {
        continue;
      }
      Messages& receiver = members[place->second];
      const auto got = received[place->second].find(int32_t(sender.rank()));
      if (got == received[place->second].end()) {
        continue;
      }
      const size_t both = std::min(sent.size(), got->second.size());
      for (size_t k = 0; k < both; ++k) {
        sender.mark(0, sent[k]);
        receiver.mark(1, got->second[k]);
      }
      marked += 2 * both;
    }
  }
  return marked;
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
    Stream* const stream = streamWith(*member, kind);
    if (stream == nullptr || fewest == 0) {
      taken.emplace_back();
      continue;
    }
    // Replays of a graph repeat numbers, so that calls are counted instead.
    taken.push_back(takenFrom(*stream, [&](size_t i) {
      return isRising ? stream->records[i].number <= over : i < fewest;
    }));
  }
  return splitCollectives(pointersTo(taken), ranks, blocks);
}

Waits takeMessages(std::span<Communicator* const> members, uint32_t blocks) {
  std::vector<Messages> messages;
  for (Communicator* member : members) {
    messages.emplace_back(*member);
  }
  markPairs(messages);
  uint64_t dropped = 0;
  std::vector<int64_t> ranks;
  std::vector<Stream> sends;
  std::vector<Stream> receives;
  for (Messages& of : messages) {
    ranks.push_back(of.rank());
    sends.push_back(of.take(0));
    receives.push_back(of.take(1));
    dropped += of.lostOne() ? of.size() : 0;
  }
  Waits waits = splitWholeMessages(
      ranks, pointersTo(sends), pointersTo(receives), blocks);
  waits.unmatchedRecords += dropped;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].lostOne()) {
      waits.wholeTimeUs[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return waits;
}

Waits takeUnsplit(
    std::span<Communicator* const> members,
    const std::string& kind) {
  std::vector<Stream> taken;
  for (Communicator* member : members) {
    Stream* const stream = streamWith(*member, kind);
    taken.push_back(
        stream == nullptr ? Stream()
                          : takenFrom(*stream, [](size_t) { return true; }));
  }
  return unsplit(pointersTo(taken));
}

} // namespace commprof::inspector
