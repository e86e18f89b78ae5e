// Memory shared by the ranks of one host, with the time at which each rank
// issued each collective. Any rank can read which rank came last, and when.
//
// A group takes a column of cells for each of its ranks on this host, and only
// one list for its ranks on all other hosts together: the whole group's last
// arrival at each collective. The carrier (hosts/arrival_carrier.h) writes this
// list, with times by this host's clock. Every word has one writer, the helper
// thread of a rank or the carrier, so that no process waits for another, and a
// process that dies leaves nothing half done. A cell is overwritten at most
// kSlots collectives later; a late reader detects this.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/record.h"

namespace commprof {

// In an operation, a rank waits for all ranks of its group, or for fewer if the
// operation has a root or is a message. The rules below are the same as in
// commprof/analysis/align/matching.py, which states reasons and measurements; a
// test compares the two.

// An operation as one rank issued it.
struct Meaning {
  Op op = Op::kAllReduce;
  uint32_t root = 0; // rank in the group, if the operation has one
  bool is_gloo = false; // true if gloo runs the operation
};

// True if a rank may be done before another one has arrived.
bool mayBeDoneEarly(Op op) noexcept;

// True if `rank` cannot be done before `other` has arrived, both in a group of
// `size` ranks. A rank needs itself.
bool needs(
    const Meaning& meaning,
    uint32_t size,
    uint32_t rank,
    uint32_t other) noexcept;

// True if `rank` needs every other rank of the group.
bool needsAll(const Meaning& meaning, uint32_t size, uint32_t rank) noexcept;

// State of this host's carrier (hosts/arrival_carrier.h), and of its links to
// the carriers of other hosts.
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
  // Number of newest collectives that are kept for a group. It is lower if the
  // group has many ranks on this host, or once half of the memory is taken.
  static constexpr uint32_t kSlots = 1 << 14;
  static constexpr uint32_t kFewestSlots = 64;
  // Each ordered pair of ranks that exchange messages counts as a group.
  static constexpr uint32_t kMaxGroups = 1024;
  // Size of the board for all groups of one host. The board and the carrier's
  // table together stay below 64 MiB. A page takes memory once it is written
  // to.
  static constexpr size_t kBytes = 48 << 20;
  // In an operation in which a rank may be done before another has arrived,
  // hosts send each other the arrivals of single ranks. For groups larger than
  // this, they send only the root's arrival.
  static constexpr uint32_t kMostListed = 256;

  // Makes unnamed memory, which is freed with the last process that holds it.
  // `local_ranks`: ranks expected on this host. Throws std::system_error.
  static std::unique_ptr<ArrivalBoard> create(
      uint64_t token,
      uint32_t local_ranks = 8);
  // Opens the same memory in another process of this user and host; `path` is
  // /proc/<pid>/fd/<fd()> of the process that made it. Throws
  // std::system_error, or std::invalid_argument if the file is not the board
  // with this token.
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
    kMissing, // not all ranks of the group have arrived
    kPartial, // like kKnown, but some ranks of other hosts were not seen
    kKnown,
    kLost, // overwritten by now
    kNoPlace, // the board had no place, or no room, for the group
    // The operation needs arrivals of single ranks, and the group is too large
    // for them.
    kUnlisted,
  };
  struct Last {
    uint64_t at_ns = 0; // when the last rank issued the collective
    uint32_t rank = 0; // that rank's global rank
    // Bound on the error of `at_ns` from comparing clocks; 0 among ranks of one
    // host.
    uint64_t clock_error_ns = 0;
  };
  struct Member {
    uint64_t key = 0; // key of the group, the same on all ranks; not 0
    uint32_t rank = 0; // rank in the group
    uint32_t size = 0;
    uint32_t global_rank = 0;
  };
  // How much the other hosts must know of an arrival.
  enum class Kind : uint8_t {
    kAll, // all ranks wait for all: the last arrival is sufficient
    kSingle, // a rank may be done before another has arrived
    kRoot, // as kSingle, and this rank is the root
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
    uint32_t absent = 0; // ranks that were not seen
  };

 private:
  struct Header;
  struct Place;
  struct Column;

 public:
  // One group as one of its ranks sees it. Not thread-safe; must not outlive
  // the board.
  class Group {
   public:
    Group() = default;
    void post(uint32_t seq, uint64_t issue_ns, Kind kind = Kind::kAll) noexcept;
    // Finds the rank that came last to collective `seq`, among the ranks that
    // this rank needs and that came before this rank was done with the
    // collective; this rank itself if none of them came later. `near_ns` is the
    // time at which some rank issued the collective: it is needed because cells
    // keep times modulo 9.8 hours.
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
    // Sets `end` to the sequence number after that of the newest collective
    // that a rank of this host wrote down. False if there is none yet. Sequence
    // numbers wrap around.
    bool newestEnd(uint32_t& end) const noexcept;
    // Appends the arrivals of this host's ranks at collective `seq`.
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

  // False if the board has no place or no room for the group, or knows the
  // group with another size. While another rank is making the group's place,
  // returns true and leaves `group` empty; the caller can try again.
  bool join(const Member& member, Group& group) noexcept;
  // Returns the group with this key; empty if no rank of this host has joined.
  Group find(uint64_t key) noexcept;
  // Returns the group in a place below kMaxGroups, and its key; empty if none.
  Group at(uint32_t place, uint64_t& key) noexcept;
  // Bytes taken by the groups so far.
  size_t usedBytes() const noexcept;

  // Only the carrier sets the links.
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
