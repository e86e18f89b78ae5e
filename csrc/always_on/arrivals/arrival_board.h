// Memory that the ranks of one host share: when each of them issued each
// collective. Any rank can then tell which one came last, and when.
//
// Every cell has one writer, the helper thread of its rank, so nobody waits for
// anybody and a process that dies leaves nothing half done. A cell is written
// over kSlots collectives of its group later; who reads it too late sees that.
// For the ranks of other hosts writes the carrier (hosts/arrival_carrier.h), by
// this host's clock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/record.h"

namespace commprof {

// Whom a rank waits for in an operation: all ranks of its group, or fewer where
// the operation has a root and in messages. The reasons, and what was measured,
// stand in commprof/analysis/align/matching.py; a test compares the two.

// One operation as its rank issued it.
struct Meaning {
  Op op = Op::kAllReduce;
  uint32_t root = 0; // rank in the group, of operations that have one
  bool is_gloo = false; // who runs it
};

// Whether a rank may be done before another one has arrived.
bool mayBeDoneEarly(Op op) noexcept;

// Whether `rank` cannot be done before `other` has arrived, both of the group's
// `size` ranks. A rank needs itself.
bool needs(
    const Meaning& meaning,
    uint32_t size,
    uint32_t rank,
    uint32_t other) noexcept;

// What this host's carrier has to do with those of other hosts.
struct HostLinks {
  bool clock_known = false; // against rank 0's
  int64_t clock_offset_ns = 0; // rank 0's clock less this host's
  uint32_t peers = 0; // other hosts that said where they are
  uint32_t heard = 0; // of them something was taken
  uint64_t unsent = 0; // datagrams that the network would not take
};

// The operation that a rank asks about, and when it was done with it.
struct AskedAbout {
  Meaning meaning;
  uint64_t done_ns = UINT64_MAX; // by its own clock
};

class ArrivalBoard {
 public:
  // Collectives of one group between the newest and the oldest known.
  static constexpr uint32_t kSlots = 1 << 14;
  // Each pair of ranks that send each other messages is a group, and each way.
  static constexpr uint32_t kMaxGroups = 192;
  // Of all groups, on one host. A page counts once it was written to.
  static constexpr size_t kBytes = 64 << 20;

  // Memory without a name, which ends with the processes that hold it. Throws
  // std::system_error.
  static std::unique_ptr<ArrivalBoard> create(uint64_t token);
  // The same memory from another process of this user and host; `path` is
  // /proc/<pid>/fd/<fd()> of the one that made it. Throws std::system_error, or
  // std::invalid_argument if what is there is not the board with this token.
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
    kMissing, // not all ranks of the group were seen yet
    kKnown,
    kLost, // written over by now
    kNoPlace, // the board had no place, or no room, for its group
  };
  struct Last {
    uint64_t at_ns = 0; // issue by the last rank that held the asking one up
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
    // The last rank to issue collective `seq` of those that this one needs and
    // that came before it was done; itself if none came later. `near_ns` is an
    // issue of it, since cells keep times modulo 9.7 hours.
    State last(
        uint32_t seq,
        uint64_t near_ns,
        Last& found,
        const AskedAbout& asked = {}) const noexcept;
    explicit operator bool() const noexcept {
      return cells_ != nullptr;
    }

    // The rest is for the carrier, which sees all ranks.
    uint32_t size() const noexcept {
      return size_;
    }
    // Whether a rank of this host has joined as that one.
    bool isLocal(uint32_t rank) const noexcept;
    uint32_t globalRank(uint32_t rank) const noexcept;
    // One past the newest collective that the rank wrote down; 0: none yet. It
    // counts on in 64 bits where the numbers begin anew.
    uint64_t end(uint32_t rank) const noexcept;
    // When the rank issued `seq`; false if it is not there, or no longer.
    bool find(uint32_t rank, uint32_t seq, uint64_t near_ns, uint64_t& issue_ns)
        const noexcept;
    // From here on post() writes for that rank of another host, with times
    // known within `clock_error_ns`. False if it is one of this host.
    bool standFor(const Member& remote, uint64_t clock_error_ns) noexcept;

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

  // False if there is no place left. Another rank may be about to make the
  // group's place: then `group` stays empty, and it is worth another try.
  bool join(const Member& member, Group& group) noexcept;
  // A group that a rank of this host has joined; empty without any.
  Group find(uint64_t key) noexcept;
  // The group in a place below kMaxGroups, and its key; empty without any.
  Group at(uint32_t place, uint64_t& key) noexcept;

  // The carrier alone sets them.
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
