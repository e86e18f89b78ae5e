// Memory that the ranks of one host share. It holds the time at which each rank
// issued each collective, so that any rank can find which rank came last.
//
// A group has a column of cells for each of its ranks on this host. It also has
// a list of the whole group's last arrivals, which the carrier
// (hosts/arrival_carrier.h) writes. Every cell has only one writer, the helper
// thread of a rank or the carrier, so no process waits for another. A process
// that dies leaves no cell half written. Cells are reused for later
// collectives; a late reader detects this.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/record.h"

namespace commprof {

// In some operations, a rank waits for only some ranks of its group. The rules
// below are those of commprof/analysis/align/matching.py, which gives the
// reasons. A test compares the rules.

// What decides which ranks an operation waits for.
struct Meaning {
  Op op = Op::kAllReduce;
  uint32_t root = 0; // group rank of the root, if there is one
  bool is_gloo = false;
};

// True if a rank may be done with the operation before all ranks have arrived.
bool mayBeDoneEarly(Op op) noexcept;

// True if `rank` cannot be done before `other` has arrived. Both are ranks of a
// group of `size` ranks. A rank needs itself.
bool needs(
    const Meaning& meaning,
    uint32_t size,
    uint32_t rank,
    uint32_t other) noexcept;

// True if `rank` needs every other rank of the group.
bool needsAll(const Meaning& meaning, uint32_t size, uint32_t rank) noexcept;

// True if `rank`, which arrived at a collective at `at_ns`, counts as later
// than `other_rank`. Of ranks that arrive at the same time, the lowest counts
// as the last. Both are global ranks.
constexpr bool isLastOf(
    uint64_t at_ns,
    uint32_t rank,
    uint64_t other_ns,
    uint32_t other_rank) noexcept {
  const int64_t after_ns = int64_t(at_ns - other_ns);
  return after_ns > 0 || (after_ns == 0 && rank < other_rank);
}

// State of this host's carrier, and of its links to other hosts.
struct HostLinks {
  bool clock_known = false; // true once compared with rank 0's clock
  int64_t clock_offset_ns = 0; // rank 0's clock minus this host's
  uint32_t peers = 0; // hosts with which this host exchanges datagrams
  uint32_t heard = 0; // other hosts in this host's tree of carriers
  uint64_t unsent = 0; // datagrams that the network did not accept
  uint64_t skipped = 0; // collectives for which the carrier had no room
};

// An operation that a rank asks about, and when the rank was done with it.
struct AskedAbout {
  Meaning meaning;
  uint64_t done_ns = UINT64_MAX; // by the rank's own clock
};

class ArrivalBoard {
 public:
  // Largest number of collectives that are kept for a group, the newest ones.
  static constexpr uint32_t kSlots = 1 << 14;
  static constexpr uint32_t kFewestSlots = 64;
  // Each ordered pair of ranks that exchange messages counts as a group.
  static constexpr uint32_t kMaxGroups = 1024;
  // Size of the board. A page of the board takes memory only once it is
  // written. The board and the carrier's table together stay below 64 MiB.
  static constexpr size_t kBytes = 48 << 20;
  // Hosts send each other the arrivals of single ranks if mayBeDoneEarly() is
  // true for the operation. In a group larger than this, hosts send only the
  // root's arrival.
  static constexpr uint32_t kMostListed = 256;

  // Makes unnamed memory, which is freed with the last process that holds it.
  // `local_ranks`: ranks expected on this host. Throws std::system_error.
  static std::unique_ptr<ArrivalBoard> create(
      uint64_t token,
      uint32_t local_ranks = 8);
  // Opens the memory that another process of this user and host has made.
  // `path` is /proc/<pid>/fd/<fd()> of that process. Throws std::system_error,
  // or std::invalid_argument if the file is not the board with this token.
  static std::unique_ptr<ArrivalBoard> open(
      const std::string& path,
      uint64_t token);
  ~ArrivalBoard();
  ArrivalBoard(const ArrivalBoard&) = delete;
  ArrivalBoard& operator=(const ArrivalBoard&) = delete;

  int fd() const noexcept {
    return fd_;
  }

  enum class State {
    kMissing, // some rank has not arrived yet
    kPartial, // like kKnown, but some ranks of other hosts were not seen
    kKnown,
    kLost, // overwritten by now
    kNoPlace, // the board had no room for the group
    // The operation needs arrivals of single ranks, and the group is too large
    // for them.
    kUnlisted,
  };
  struct Last {
    uint64_t at_ns = 0; // when the last rank issued the collective
    uint32_t rank = 0; // global rank of the last rank
    // Bound on the error of `at_ns`; 0 among ranks of one host.
    uint64_t clock_error_ns = 0;
  };
  struct Member {
    uint64_t key = 0; // key of the group, the same on all ranks; not 0
    uint32_t rank = 0; // rank in the group
    uint32_t size = 0;
    uint32_t global_rank = 0;
  };
  // What other hosts need to know of an arrival.
  enum class Kind : uint8_t {
    kAll, // only the group's last arrival
    kSingle, // its time, because some ranks may be done earlier
    kRoot, // like kSingle; the arrival is the root's
  };
  struct Arrival {
    uint32_t rank = 0; // rank in the group
    uint32_t global_rank = 0;
    uint64_t at_ns = 0;
    Kind kind = Kind::kAll;
  };
  // The last arrival of a group at a collective, as the carrier finds it.
  struct GroupLast {
    uint64_t at_ns = 0; // time by this host's clock
    uint64_t error_ns = 0;
    uint32_t global_rank = 0;
    uint32_t absent = 0; // number of ranks whose arrival is unknown
  };

 private:
  struct Header;
  struct Place;
  struct Column;

 public:
  // A rank's access to one group of the board. Not thread-safe; must not
  // outlive the board.
  class Group {
   public:
    Group() = default;
    void post(uint32_t seq, uint64_t issue_ns, Kind kind = Kind::kAll) noexcept;
    // Finds the last arrival at collective `seq` among this rank and the ranks
    // that it needs. Ignores arrivals after this rank was done. `near_ns` is
    // the time at which some rank issued the collective, because cells keep
    // times modulo 9.8 hours.
    State last(
        uint32_t seq,
        uint64_t near_ns,
        Last& found,
        const AskedAbout& asked = {}) const noexcept;
    explicit operator bool() const noexcept {
      return place_ != nullptr;
    }

    // The functions below are for the carrier.
    uint32_t size() const noexcept;
    uint32_t slots() const noexcept;
    uint32_t localRanks() const noexcept; // this host's ranks that have joined
    // Sets `end` to 1 plus the sequence number of the newest collective that a
    // rank of this host has posted. False if there is none yet. Sequence
    // numbers wrap around.
    bool newestEnd(uint32_t& end) const noexcept;
    // Appends the arrivals of this host's ranks at collective `seq` to `out`.
    void arrivals(uint32_t seq, uint64_t near_ns, std::vector<Arrival>& out)
        const;
    void setLast(uint32_t seq, const GroupLast& last) noexcept;
    void setListed(uint32_t seq, const Arrival& arrival) noexcept;

   private:
    friend class ArrivalBoard;
    bool isLocal(uint32_t rank) const noexcept;
    State lastOfSome(
        uint32_t seq,
        const GroupLast& last,
        const AskedAbout& asked,
        Last& found) const noexcept;

    ArrivalBoard* board_ = nullptr;
    Place* place_ = nullptr;
    Column* own_ = nullptr; // null for the carrier
  };

  // Returns false if the board has no room for the group, or holds the group
  // with another size. Returns true and leaves `group` empty while another rank
  // adds the group; the caller can try again.
  bool join(const Member& member, Group& group) noexcept;
  // Returns the group with this key; empty if no rank of this host has joined.
  Group find(uint64_t key) noexcept;
  // Returns the group at index `place`, which is below kMaxGroups, and its key.
  // The group is empty if there is none.
  Group at(uint32_t place, uint64_t& key) noexcept;
  size_t usedBytes() const noexcept;

  // Only the carrier calls setLinks().
  void setLinks(const HostLinks& links) noexcept;
  HostLinks links() const noexcept;

 private:
  ArrivalBoard(int fd, void* memory) noexcept;
  uint32_t slotsFor(uint32_t size) const noexcept;
  Column* columnOf(Place& place, const Member& member) noexcept;
  Column* columnAt(uint64_t offset) const noexcept;

  int fd_;
  Header* header_;
};

} // namespace commprof
