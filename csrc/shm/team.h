// The ranks of one host, which meet at barriers in shared memory.
//
// What a rank wrote before a barrier, all may read after it.
// Waiting spins briefly and then sleeps on a futex, so that ranks without a
// core of their own do not take one from those who have work. A rank that does
// not come is named: at once if its process has ended, after the timeout
// otherwise; and the team is broken for good, for everybody.
//
// Collectives share the check that all ranks do the same, and copies.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/linear/combine.h"
#include "shm/segment.h"

namespace commprof::shm {

// A rank is missing, or another one said so. what() names it.
class TeamError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TeamOptions {
  std::string name; // of the segment, the same on all ranks
  int rank = 0; // on this host
  int size = 1; // ranks of this host
  std::vector<int> global_ranks; // what to call them in messages; by rank
  size_t slot_bytes = 0; // per rank and buffer half, see Team::slot()
  std::chrono::milliseconds timeout{30000};
};

class Team {
 public:
  // Rank 0 creates the segment, the others open it: call it on rank 0 first,
  // tell the others, and return on any rank means that all have it mapped.
  // Throws SegmentError and TeamError.
  static std::string makeName() {
    return Segment::randomName();
  }
  // This rank's first half of it: its slots, on its own NUMA node.
  static Segment reserve(const TeamOptions& options);
  Team(TeamOptions options, Segment segment); // meets the others
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team(); // leaves

  int rank() const noexcept {
    return options_.rank;
  }
  int size() const noexcept {
    return options_.size;
  }
  size_t slotBytes() const noexcept {
    return options_.slot_bytes;
  }
  // Two halves of `slot_bytes` per rank, 64-byte aligned, and two results
  // shared by all. Who may write where between which barriers is the
  // collectives' affair.
  std::byte* slot(int rank, uint32_t half) const noexcept;
  std::byte* result(uint32_t half) const noexcept;

  // Returns when all ranks have called it as often. Throws TeamError.
  void meet();

  // Says what this rank is about to do, for meetCheck().
  struct Intent {
    char what[40] = ""; // operation, element type, reduction, as words
    uint64_t bytes = 0;
    bool operator==(const Intent&) const = default;
    std::string text() const; // "all_reduce fp32 sum of 12 bytes"
  };
  // Meets, and throws TeamError naming two ranks and what differs, on all
  // ranks, if they do not intend the same. The team is whole afterwards.
  void meetCheck(const Intent& intent);

  // Breaks the team up for good: the others' next barrier, or the one that
  // they wait in, throws and names this rank and `why`.
  void abandon(const std::string& why) noexcept;
  // The same where nothing went wrong: this rank needs the others no more.
  void leave() noexcept;
  bool broken() const noexcept;

  // Of all later barriers. Any thread.
  void setTimeout(std::chrono::milliseconds timeout) noexcept {
    timeout_ms_.store(timeout.count());
  }
  // Whether waiting begins by spinning: the ranks have a core each.
  bool spins() const noexcept {
    return spins_ != 0;
  }

  // What to call a rank of this host outside of it.
  int globalRank(int rank) const;

  // Which half the next operation uses; all ranks count alike.
  uint32_t nextHalf() noexcept {
    return half_ ^= 1;
  }

 private:
  struct Shared;
  struct RankLine;
  Shared& shared() const noexcept;
  RankLine& line(int rank) const noexcept;
  void waitUntilPast(uint32_t generation);
  void watch(
      uint32_t generation,
      std::chrono::steady_clock::time_point deadline);
  [[noreturn]] void breakUp(int missing, const std::string& why);
  void tellWhy(const std::string& reason) noexcept;
  [[noreturn]] void throwReason();
  std::string personOf(int rank) const;
  std::string nameOf(int rank) const;

  TeamOptions options_;
  Segment segment_;
  const int pid_; // a forked child has no part in this
  std::atomic<int64_t> timeout_ms_;
  std::vector<int> pidfds_; // by rank; -1 where there is none
  uint32_t meetings_ = 0;
  uint32_t half_ = 0;
  uint32_t spins_ = 0;
};

// What a team needs in all, with its header.
size_t segmentBytes(int size, size_t slot_bytes);

// memcpy, which may not be called with null even for nothing.
inline void copyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

// What ranks compare, and what they say where they differ.
Team::Intent intend(const std::string& what, uint64_t bytes);

// "all_reduce fp32 sum"
std::string named(
    const char* what,
    kernels::Element element,
    kernels::Reduction reduction);

// Barriers of one operation, the first of which checks that all ranks do
// the same.
class Barriers {
 public:
  Barriers(Team& team, const Team::Intent& intent)
      : team_(team), intent_(intent) {}
  void meet() {
    if (first_) {
      first_ = false;
      team_.meetCheck(intent_);
    } else {
      team_.meet();
    }
  }

 private:
  Team& team_;
  const Team::Intent intent_;
  bool first_ = true;
};

} // namespace commprof::shm
