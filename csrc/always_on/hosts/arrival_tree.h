// This host's part in the tree of hosts, which finds the rank of a group that
// arrives last at a collective. For each collective, a host sends one value up
// the tree, for any number of ranks: the last arrival that it knows of. This
// goes on until some host has seen all ranks of the group. The last arrival of
// all ranks then goes down to the hosts that sent something, and onto their
// boards.
//
// A rank stays unseen if its host is dead, slow or cut off, or does not record.
// After kPartialNs, if at most half of the group is unseen, the root sends the
// last known arrival and the number of ranks that were seen.
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

// Not thread-safe; must not outlive the board. All functions but skipped() may
// throw std::bad_alloc.
class ArrivalTree {
 public:
  // Arrivals farther than this in the past or in the future are rejected.
  static constexpr uint64_t kPastNs = 60'000'000'000;
  static constexpr uint64_t kFutureNs = 1'000'000'000;
  // kSettleNs after the first arrival at a collective, a host sends up its last
  // known arrival even if some of its ranks are missing. After kPartialNs, the
  // root gives up waiting for ranks that stay unseen.
  static constexpr uint64_t kSettleNs = 300'000'000;
  static constexpr uint64_t kPartialNs = 3'000'000'000;
  // For how long a collective is kept if its last arrival stays unknown, and
  // for how long it is kept after its last arrival has become known.
  static constexpr uint64_t kKeepNs = 8'000'000'000;
  static constexpr uint64_t kKeepKnownNs = 1'500'000'000;
  // When a group is new to the carrier, the carrier also reads this many
  // earlier collectives of the group.
  static constexpr uint32_t kRewind = 1024;
  // At most kMaxCollectives collectives are kept for all groups with more than
  // kLargeRanks ranks, and the same number for all smaller groups, so that
  // neither kind takes the other's room. Beyond that, the oldest collective of
  // the kind is dropped.
  static constexpr uint32_t kLargeRanks = 64;
  static constexpr size_t kMaxCollectives = 1 << 14;
  static constexpr size_t kMaxListed = 1 << 16; // arrivals of single ranks
  // Everything is sent twice, so that a single lost datagram loses nothing.
  static constexpr uint8_t kSends = 2;

  explicit ArrivalTree(ArrivalBoard& board) : board_(board) {}

  // Takes the arrivals that the ranks of this host have written since the last
  // call.
  void gather(const ClockLine& clock, uint64_t now_ns);
  // Takes a message of a child or of the parent.
  void take(const ArrivalMessage& message, uint64_t now_ns);
  // Decides which last arrivals are known by now, and forgets old collectives.
  void advance(bool is_root, uint64_t now_ns);
  // packUp() packs new arrivals for the parent, and packDown() packs new
  // arrivals for a child. Arrivals that do not fit come first in the next call.
  // When all are packed, call endOfRound().
  void packUp(ArrivalPacker& out);
  void packDown(uint32_t child, ArrivalPacker& out);
  void endOfRound();
  // Writes the known arrivals onto the board. Call it after sending: a rank may
  // end its process as soon as it has read the board, and by then the arrivals
  // that other hosts wait for must have been sent.
  void publish(const std::optional<ClockLine>& clock, uint64_t now_ns);
  // Call it when this host gets another parent. Arrivals sent to the former
  // parent are not sent again, so that no rank counts twice.
  void changeParent();

  bool hasNews() const noexcept {
    return !up_.empty() || !down_.empty() || !changed_.empty();
  }
  // Number of collectives that were dropped before their last arrival was
  // known.
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
  // Arrivals that the subtree of the child `host` sent; if `host` is 0, those
  // that this host's own ranks wrote.
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
    bool is_open = false; // ranks of this host may still arrive
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
  // Collectives in order of begin_ns. by_age_[0] holds collectives of small
  // groups, by_age_[1] of large groups. waiting_ holds collectives whose last
  // arrival is not known yet.
  std::array<std::deque<Id>, 2> by_age_;
  // Number of kept collectives: [0] of small groups, [1] of large groups.
  std::array<size_t, 2> number_{};
  std::deque<Id> waiting_;
  // Collectives, with the time until which each is kept.
  std::deque<std::pair<uint64_t, Id>> finished_;
  std::unordered_map<uint64_t, Progress> progress_; // keyed by the group's key
  // Collectives in each state: ranks still to come, changed, to be sent up, to
  // be sent down, to be published.
  std::vector<Id> open_;
  std::vector<Id> changed_;
  std::vector<Id> up_;
  std::vector<Id> down_;
  std::vector<Id> known_;
  size_t listed_ = 0;
  uint64_t skipped_ = 0;
  std::vector<ArrivalBoard::Arrival> arrivals_; // reused by each scan
};

} // namespace commprof
