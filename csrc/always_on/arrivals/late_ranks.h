// Who came last to the collectives of this rank, and how long it waited for
// whom: counts per rank, and the waiting by time for a test against chance.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace commprof {

// Not thread-safe. Its size has a bound: beyond kMaxCells, neighbouring blocks
// of time become one.
class LateRanks {
 public:
  static constexpr uint64_t kFirstBlockNs = uint64_t(1) << 24; // 17 ms
  static constexpr uint64_t kMaxBlocks = 128;
  static constexpr size_t kMaxCells = 1024;

  // `rank` was the last of a collective, for which this rank waited.
  void wasLast(uint32_t rank, uint64_t wait_ns);
  // The training thread stood still for `rank`, from `at_ns` on.
  void exposed(uint64_t at_ns, uint32_t rank, uint64_t wait_ns);
  // Nothing that exposed() was told counts any more.
  void forgetExposed();

  // "last" and "waited_for" as members of a JSON object.
  void appendJson(std::string& out) const;

 private:
  struct Last {
    uint64_t count = 0;
    uint64_t wait_ns = 0;
  };
  void doubleBlocks();

  std::map<uint32_t, Last> last_;
  uint64_t block_ns_ = kFirstBlockNs;
  // By block (time over block_ns_) and rank.
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> waited_ns_;
};

} // namespace commprof
