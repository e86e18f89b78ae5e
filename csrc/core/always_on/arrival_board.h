// Memory that the ranks of one host share: when each of them issued each
// collective. Any rank can then tell which one came last, and when.
//
// Every cell has one writer, the helper thread of its rank, so nobody waits for
// anybody and a process that dies leaves nothing half done. A cell is written
// over kSlots collectives of its group later; who reads it too late sees that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace commprof {

class ArrivalBoard {
 public:
  // Collectives of one group between the newest and the oldest known.
  static constexpr uint32_t kSlots = 1 << 14;
  static constexpr uint32_t kMaxGroups = 64;
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
  };
  struct Last {
    uint64_t at_ns = 0; // issue by the last rank
    uint32_t rank = 0; // its global rank
  };

  // One group as one of its ranks sees it. Not thread-safe; must not outlive
  // the board.
  class Group {
   public:
    Group() = default;
    void post(uint32_t seq, uint64_t issue_ns) noexcept;
    // The last of all ranks to issue collective `seq`; `near_ns` is an issue of
    // it, since cells keep times modulo 9.7 hours.
    State last(uint32_t seq, uint64_t near_ns, Last& found) const noexcept;
    explicit operator bool() const noexcept {
      return cells_ != nullptr;
    }

   private:
    friend class ArrivalBoard;
    uint32_t rank_ = 0;
    uint32_t size_ = 0;
    std::atomic<uint64_t>* ranks_ = nullptr; // global rank + 1 by group rank
    std::atomic<uint64_t>* cells_ = nullptr; // [slot][group rank]
  };

  struct Member {
    uint64_t key = 0; // of the group, the same on all ranks; not 0
    uint32_t rank = 0; // in the group
    uint32_t size = 0;
    uint32_t global_rank = 0;
  };
  // False if there is no place left. Another rank may be about to make the
  // group's place: then `group` stays empty, and it is worth another try.
  bool join(const Member& member, Group& group) noexcept;

 private:
  struct Header;
  ArrivalBoard(int fd, void* memory) noexcept;

  int fd_;
  Header* header_;
};

} // namespace commprof
