// This host's node in the tree of hosts. The tree finds which rank of a group
// arrives last at a collective. A host sends its parent the last arrival so
// far, until some host knows the arrivals of all ranks. The last arrival of the
// whole group then goes down the tree and onto the boards.
//
// Some arrivals never come, for example those of a dead host. After kPartialNs,
// the root sends down the last arrival so far if at least half of the ranks
// have arrived.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "always_on/arrivals/arrival_board.h"
#include "always_on/hosts/arrival_message.h"
#include "clock/clock_track.h"

namespace commprof {

// Not thread-safe; must not outlive the board. Functions without noexcept may
// throw std::bad_alloc.
class ArrivalTree {
 public:
  // Arrivals farther than this in the past or in the future are rejected.
  static constexpr uint64_t kPastNs = 60'000'000'000;
  static constexpr uint64_t kFutureNs = 1'000'000'000;
  // kSettleNs: how long a host waits for missing ranks of its own before it
  // sends the last arrival so far. kPartialNs: how long the root waits for
  // missing ranks of the group.
  static constexpr uint64_t kSettleNs = 300'000'000;
  static constexpr uint64_t kPartialNs = 3'000'000'000;
  // kKeepNs: how long a collective is kept while arrivals of some ranks are
  // unknown. kKeepKnownNs: how long it is kept once all ranks' arrivals are
  // known.
  static constexpr uint64_t kKeepNs = 8'000'000'000;
  static constexpr uint64_t kKeepKnownNs = 1'500'000'000;
  // When a group is new to the carrier, the carrier also reads this many
  // earlier collectives of the group.
  static constexpr uint32_t kRewind = 1024;
  // At most kMaxCollectives collectives of small groups are kept, and as many
  // of large groups (more than kLargeRanks ranks). Beyond that, the oldest
  // collective is dropped.
  static constexpr uint32_t kLargeRanks = 64;
  static constexpr size_t kMaxCollectives = 1 << 14;
  static constexpr size_t kMaxListed = 1 << 16; // arrivals of single ranks
  // Everything is sent twice, so that a single lost datagram loses nothing.
  static constexpr uint8_t kSends = 2;

  explicit ArrivalTree(ArrivalBoard& board) : board_(board) {}

  // Takes the arrivals that the ranks of this host have written since the last
  // call.
  void gather(const ClockLine& clock, uint64_t now_ns);
  void take(const ArrivalMessage& message, uint64_t now_ns);
  // Decides which last arrivals are known by now, and forgets old collectives.
  void advance(bool is_root, uint64_t now_ns);
  // packUp() packs new arrivals for the parent, packDown() for a child.
  // Arrivals that do not fit are packed in a later round. End each round with
  // endOfRound().
  void packUp(ArrivalPacker& out);
  void packDown(uint32_t child, ArrivalPacker& out);
  void endOfRound();
  // Writes the known last arrivals onto the board. Call it after sending: a
  // rank that has read the board may end the process, and nothing is sent after
  // that.
  void publish(const std::optional<ClockLine>& clock, uint64_t now_ns);
  // Call it when this host gets another parent. Arrivals sent to the former
  // parent are not sent again, so that no rank counts twice.
  void changeParent();

  bool hasNews() const noexcept {
    return !up_.empty() || !down_.empty() || !changed_.empty();
  }
  // Number of collectives that were dropped for lack of room before their last
  // arrival was known.
  uint64_t skipped() const noexcept {
    return skipped_;
  }

 private:
  struct Id {
    uint64_t key;
    uint32_t seq;
    bool operator==(const Id&) const = default;
  };
  struct IdHash {
    size_t operator()(const Id& id) const noexcept {
      return size_t(id.key ^ (id.seq * 0x9e3779b97f4a7c15ull));
    }
  };
  // Arrivals in the subtree of the child `host`. If `host` is 0: arrivals of
  // this host's own ranks.
  struct Part {
    uint32_t host = 0;
    uint32_t present = 0;
    uint64_t last_ns = 0; // by rank 0's clock
    uint32_t last_rank = 0;
    uint32_t error_ns = 0;
  };
  struct Collective {
    Id id;
    uint32_t size = 0;
    uint64_t begin_ns = 0; // when this host first heard of the collective
    std::vector<Part> parts{};
    Part last{}; // last arrival of the whole group, once known
    std::vector<ArrivalBoard::Arrival> listed{};
    uint8_t up_sends = 0;
    uint8_t down_sends = 0;
    bool is_open = false; // some ranks of this host have not arrived yet
    bool is_changed = false;
    bool was_sent_up = false;
    bool is_with_former = false; // sent to a former parent
    bool is_blocked = false; // a child's datagrams were full
  };
  struct Progress {
    uint32_t next = 0; // sequence number of the next collective to read
    uint32_t local_ranks = 0;
  };

  Collective* collective(const Id& id, uint32_t size, uint64_t now_ns);
  Collective* find(const Id& id) noexcept;
  void drop(const Id& id);
  void reopen(uint64_t key);
  bool scan(Collective& one, const ClockLine& clock, uint64_t now_ns);
  void takeFromChild(
      Collective& one,
      const KnownArrivals& known,
      const ArrivalMessage& message);
  void takeFromParent(
      Collective& one,
      const KnownArrivals& known,
      uint64_t error_ns,
      uint64_t now_ns);
  void addListed(
      Collective& one,
      const std::vector<ArrivalBoard::Arrival>& listed);
  void change(Collective& one);
  void setLast(Collective& one, const Part& last, uint64_t now_ns);
  void publish(
      const Collective& one,
      const ClockLine& clock,
      uint64_t now_ns) noexcept;
  static Part total(const Collective& one) noexcept;
  static KnownArrivals known(const Collective& one, const Part& part);

  ArrivalBoard& board_;
  std::unordered_map<Id, Collective, IdHash> all_;
  // Collectives in order of begin_ns: [0] of small groups, [1] of large groups.
  std::array<std::deque<Id>, 2> by_age_;
  // Number of kept collectives: [0] of small groups, [1] of large groups.
  std::array<size_t, 2> number_{};
  std::deque<Id> waiting_; // collectives younger than kPartialNs
  // Collectives at which the arrivals of all ranks are known, and the time
  // until which each is kept.
  std::deque<std::pair<uint64_t, Id>> finished_;
  std::unordered_map<uint64_t, Progress> progress_; // keyed by the group's key
  // Collectives to be scanned, advanced, sent up, sent down and published.
  std::vector<Id> open_;
  std::vector<Id> changed_;
  std::vector<Id> up_;
  std::vector<Id> down_;
  std::vector<Id> known_;
  size_t listed_ = 0;
  uint64_t skipped_ = 0;
  std::vector<ArrivalBoard::Arrival> arrivals_;
};

} // namespace commprof
