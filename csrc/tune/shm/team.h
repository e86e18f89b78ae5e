// Team: the ranks of one host, which synchronise at barriers in shared memory.
// Data that is written before a barrier may be read by all ranks after the
// barrier. If a rank is missing, the other ranks get an error: within about 50
// ms if they see that its process has ended (they must have the same pid
// namespace), otherwise after the timeout. The team is then broken permanently
// for all ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tune/kernels/linear/combine.h"
#include "tune/shm/segment.h"

namespace commprof::shm {

// Thrown if a rank is missing or reported an error, or if the ranks' calls
// differ. what() names the missing or failed rank, or two ranks and their
// calls.
class TeamError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TeamOptions {
  std::string name; // name of the segment; the same on all ranks
  int rank = 0; // on this host
  int size = 1; // ranks of this host
  // The ranks that messages print, by rank on this host.
  std::vector<int> global_ranks;
  size_t slot_bytes = 0; // size of a slot, see Team::slot()
  std::chrono::milliseconds timeout{30000};
};

class Team {
 public:
  static std::string makeName() {
    return Segment::randomName();
  }
  // First step of joining. Rank 0 creates the segment; the other ranks open it
  // afterwards. Throws SegmentError.
  static Segment reserve(const TeamOptions& options);
  // Second step: waits until all ranks have mapped the segment. Throws
  // TeamError.
  Team(TeamOptions options, Segment segment);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team(); // calls leave()

  int rank() const noexcept {
    return options_.rank;
  }
  int size() const noexcept {
    return options_.size;
  }
  size_t slotBytes() const noexcept {
    return options_.slot_bytes;
  }
  // Memory of the collectives. For each `half` (0 or 1), every rank has a slot,
  // and all ranks share a result. Each slot and result has slotBytes() bytes
  // and is aligned to 64 bytes.
  std::byte* slot(int rank, uint32_t half) const noexcept;
  std::byte* result(uint32_t half) const noexcept;

  // Barrier: returns once all ranks have called it. Throws TeamError.
  void arriveAndWait();

  // Describes a rank's next operation.
  struct Intent {
    char what[40] = ""; // operation, element type, reduction, as words
    uint64_t bytes = 0;
    bool operator==(const Intent&) const = default;
    std::string text() const; // "all_reduce fp32 sum of 12 bytes"
  };
  // Barrier that also compares intents. If the intents of two ranks differ, it
  // throws TeamError on all ranks. The team stays usable.
  void arriveAndCheck(const Intent& intent);

  // Breaks the team permanently. The other ranks' current or next barrier
  // throws an error that names this rank and `why`.
  void abandon(const std::string& why) noexcept;
  // Like abandon(), for a rank that ends without an error. The other ranks'
  // error says that this rank left.
  void leave() noexcept;
  bool broken() const noexcept;

  // Sets the timeout of all later barriers. Callable from any thread.
  void setTimeout(std::chrono::milliseconds timeout) noexcept {
    timeout_ms_.store(timeout.count());
  }
  // True if waiting ranks spin first, because each rank has a core.
  bool spins() const noexcept {
    return spins_ != 0;
  }

  // Returns the rank that messages print for a rank of this host.
  int globalRank(int rank) const;

  // Switches to the other half, for slot() and result(), and returns it. All
  // ranks get the same half.
  uint32_t nextHalf() noexcept {
    return half_ ^= 1;
  }

 private:
  struct Shared;
  struct RankLine;
  Shared& shared() const noexcept;
  RankLine& line(int rank) const noexcept;
  void waitUntilPast(uint32_t generation);
  void breakIfRankMissing(
      uint32_t generation,
      std::chrono::steady_clock::time_point deadline);
  [[noreturn]] void breakUp(int missing, const std::string& why);
  void breakWithReason(const std::string& reason) noexcept;
  [[noreturn]] void throwReason();
  std::string nameAndPid(int rank) const;
  std::string nameOf(int rank) const;

  TeamOptions options_;
  Segment segment_;
  const int pid_; // forked children are not part of the team
  std::atomic<int64_t> timeout_ms_;
  std::vector<int> pidfds_; // by rank; -1 if a rank has none
  uint32_t barriers_entered_ = 0;
  uint32_t half_ = 0;
  uint32_t spins_ = 0;
};

// Size of a team's segment, including its header.
size_t segmentBytes(int size, size_t slot_bytes);

// memcpy that accepts null pointers for 0 bytes.
inline void copyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

Team::Intent intend(const std::string& what, uint64_t bytes);

// Name of an operation, for example "all_reduce fp32 sum".
std::string named(
    const char* what,
    kernels::Element element,
    kernels::Reduction reduction);

// Barriers of one operation; the first barrier checks that all ranks call the
// same operation.
class Barriers {
 public:
  Barriers(Team& team, const Team::Intent& intent)
      : team_(team), intent_(intent) {}
  void arriveAndWait() {
    if (first_) {
      first_ = false;
      team_.arriveAndCheck(intent_);
    } else {
      team_.arriveAndWait();
    }
  }

 private:
  Team& team_;
  const Team::Intent intent_;
  bool first_ = true;
};

} // namespace commprof::shm
