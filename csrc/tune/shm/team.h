// Team: the ranks of one host, which synchronise at barriers in shared memory.
// Data written before a barrier may be read by all ranks after it. A waiting
// rank spins briefly and then sleeps on a futex, so that ranks without a core
// of their own do not take a core from working ranks. If a rank is missing, the
// others get an error that names it: immediately if its process has ended,
// otherwise after the timeout. The team is then broken permanently for all
// ranks.
//
// Barriers, intend() and copyBytes() are helpers for collectives: Barriers and
// intend() check that all ranks call the same operation, copyBytes() copies.
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
  std::vector<int>
      global_ranks; // by rank on this host: the rank that messages print
  size_t slot_bytes =
      0; // size of each rank's part of each buffer half, see Team::slot()
  std::chrono::milliseconds timeout{30000};
};

class Team {
 public:
  // Returns a new random name for a segment.
  static std::string makeName() {
    return Segment::randomName();
  }
  // First step of joining: rank 0 creates the segment, and the other ranks open
  // it afterwards. The memory of a rank's slots is on the rank's NUMA node.
  // Throws SegmentError.
  static Segment reserve(const TeamOptions& options);
  // Second step: waits for the other ranks. When the constructor returns on any
  // rank, all ranks have mapped the segment. Throws TeamError.
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
  // Memory of the collectives, in areas of `slot_bytes`, aligned to 64 bytes:
  // for each `half` (0 or 1), a slot of each rank and a result that all ranks
  // share. The collectives define which rank may write where between which
  // barriers.
  std::byte* slot(int rank, uint32_t half) const noexcept;
  std::byte* result(uint32_t half) const noexcept;

  // Barrier: returns once all ranks have called it. Throws TeamError.
  void arriveAndWait();

  // Description of this rank's next operation, for arriveAndCheck().
  struct Intent {
    char what[40] = ""; // operation, element type, reduction, as words
    uint64_t bytes = 0;
    bool operator==(const Intent&) const = default;
    std::string text() const; // "all_reduce fp32 sum of 12 bytes"
  };
  // Barrier that also compares intents. If two ranks' intents differ, it throws
  // TeamError on all ranks; the error names two such ranks and the difference.
  // The team stays usable afterwards.
  void arriveAndCheck(const Intent& intent);

  // Breaks the team permanently: the other ranks' current or next barrier
  // throws and names this rank and `why`.
  void abandon(const std::string& why) noexcept;
  // Like abandon(), for a rank that ends without an error: it no longer needs
  // the others. The other ranks' error says that this rank left.
  void leave() noexcept;
  bool broken() const noexcept;

  // Sets the timeout of all later barriers. Callable from any thread.
  void setTimeout(std::chrono::milliseconds timeout) noexcept {
    timeout_ms_.store(timeout.count());
  }
  // True if waiting begins by spinning, because each rank has a core.
  bool spins() const noexcept {
    return spins_ != 0;
  }

  // Returns the rank that messages print for a rank of this host.
  int globalRank(int rank) const;

  // Returns the half, for slot() and result(), that the next operation uses;
  // the same on all ranks.
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

// Makes the intent that ranks compare and that errors contain.
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
