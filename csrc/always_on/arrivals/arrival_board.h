// Memory shared by the ranks of one host, with the time at which each of them
// issued each collective. Any rank can read which one came last, and when.
//
// Every cell has one writer, the helper thread of its rank, so no process waits
// for another, and one that dies leaves nothing half done. A cell is
// overwritten kSlots collectives of its group later, which a late reader
// detects. The carrier (hosts/arrival_carrier.h) writes for the ranks of other
// hosts, in this host's clock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/record.h"

namespace commprof {

// In an operation, a rank waits for all ranks of its group, or for fewer if the
// operation has a root or is a message. The reasons and measurements are in
// commprof/analysis/align/matching.py; a test compares the two.

// One operation as its rank issued it.
struct Meaning {
  Op op = Op::kAllReduce;
  uint32_t root = 0; // rank in the group, if the operation has one
  bool is_gloo = false; // gloo runs it
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

// State of this host's carrier, and its links to those of other hosts.
struct HostLinks {
  bool clock_known = false; // compared with rank 0's
  int64_t clock_offset_ns = 0; // rank 0's clock minus this host's
  uint32_t peers = 0; // other hosts whose address is known
  uint32_t heard = 0; // other hosts whose arrivals were taken
  uint64_t unsent = 0; // datagrams that the network did not accept
};

// An operation that a rank asks about, and when the rank was done with it.
struct AskedAbout {
  Meaning meaning;
  uint64_t done_ns = UINT64_MAX; // by the rank's own clock
};

class ArrivalBoard {
 public:
  // Collectives of one group between the newest and the oldest known.
  static constexpr uint32_t kSlots = 1 << 14;
  // Each ordered pair of ranks that exchange messages is a group, too.
  static constexpr uint32_t kMaxGroups = 192;
  // Size for all groups of one host. Pages take memory when first written to.
  static constexpr size_t kBytes = 64 << 20;

  // Makes unnamed memory, which is freed with the last process that holds it.
  // Throws std::system_error.
  static std::unique_ptr<ArrivalBoard> create(uint64_t token);
  // Opens the same memory in another process of this user and host; `path` is
  // /proc/<pid>/fd/<fd()> of the one that made it. Throws std::system_error, or
  // std::invalid_argument if the file is not the board with this token.
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
    kKnown,
    kLost, // overwritten by now
    kNoPlace, // the board had no place, or no room, for its group
  };
  struct Last {
    uint64_t at_ns = 0; // issue by the last rank that delayed the asking one
    uint32_t rank = 0; // its global rank
    // Bound on the error of comparing clocks; 0 among ranks of one host.
    uint64_t clock_error_ns = 0;
  };
  struct Member {
    uint64_t key = 0; // of the group, the same on all ranks; not 0
    uint32_t rank = 0; // in the group
    uint32_t size = 0;
    uint32_t global_rank = 0;
  };

  // One group as one of its ranks sees it. Not thread-safe; must not outlive
  // the board.
  class Group {
   public:
    Group() = default;
    void post(uint32_t seq, uint64_t issue_ns) noexcept;
    // Finds the last rank to issue collective `seq` among those that this rank
    // needs and that came before it was done; this rank if none came later.
    // `near_ns` is one issue of it, since cells keep times modulo 9.7 hours.
    State last(
        uint32_t seq,
        uint64_t near_ns,
        Last& found,
        const AskedAbout& asked = {}) const noexcept;
    explicit operator bool() const noexcept {
      return cells_ != nullptr;
    }

    // The functions below are for the carrier, which sees all ranks.
    uint32_t size() const noexcept {
      return size_;
    }
    // True if a rank of this host has joined as `rank`.
    bool isLocal(uint32_t rank) const noexcept;
    uint32_t globalRank(uint32_t rank) const noexcept;
    // One past the newest collective that the rank wrote down; 0: none yet.
    // Counts on in 64 bits when the numbers wrap around.
    uint64_t end(uint32_t rank) const noexcept;
    // Finds when the rank issued `seq`; false if not there yet, or no longer.
    bool find(uint32_t rank, uint32_t seq, uint64_t near_ns, uint64_t& issue_ns)
        const noexcept;
    // Makes post() write for that rank of another host from now on, with times
    // known within `clock_error_ns`. False if it is a rank of this host.
    bool beginPostingFor(
        const Member& remote,
        uint64_t clock_error_ns) noexcept;

   private:
    friend class ArrivalBoard;
    uint32_t rank_ = 0;
    uint32_t size_ = 0;
    // By group rank: global rank + 1, end(), and the clock's error bound.
    std::atomic<uint64_t>* ranks_ = nullptr;
    std::atomic<uint64_t>* ends_ = nullptr;
    std::atomic<uint64_t>* errors_ns_ = nullptr;
    std::atomic<uint64_t>* cells_ = nullptr; // [slot][group rank]
  };

  // False if there is no place left. While another rank is making the group's
  // place, returns true and leaves `group` empty; the caller can try again.
  bool join(const Member& member, Group& group) noexcept;
  // Returns a group that a rank of this host has joined; empty if none.
  Group find(uint64_t key) noexcept;
  // Returns the group in a place below kMaxGroups, and its key; empty if none.
  Group at(uint32_t place, uint64_t& key) noexcept;

  // Only the carrier sets the links.
  void setLinks(const HostLinks& links) noexcept;
  HostLinks links() const noexcept;

 private:
  struct Header;
  ArrivalBoard(int fd, void* memory) noexcept;
  Group groupAt(uint64_t offset, uint64_t size) noexcept;

  int fd_;
  Header* header_;
};

} // namespace commprof
