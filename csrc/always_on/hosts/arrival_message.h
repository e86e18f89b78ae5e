// Messages from one host's carrier to another's: arrivals of its ranks, packed
// into datagrams that need no fragmentation.
//
// A datagram is a header and runs of consecutive collectives of one rank in one
// group. Times are in rank 0's clock; within a run, each but the first is
// stored as the difference from the one before, as a variable-length number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "always_on/arrivals/arrival_board.h"

namespace commprof {

// One rank's collectives in one group, from `first_seq` on without a gap.
struct ArrivalRun {
  ArrivalBoard::Member member;
  uint32_t first_seq = 0;
  std::vector<uint64_t> common_ns; // issues, by rank 0's clock
};

struct ArrivalMessage {
  uint32_t host = 0; // number of the sender, from 1
  uint64_t error_ns = 0; // bound on the error of its times
  std::vector<ArrivalRun> runs;
};

using Datagram = std::vector<char>;

// Not thread-safe; add() may throw std::bad_alloc.
class ArrivalPacker {
 public:
  static constexpr size_t kMaxBytes = 1200; // fits IPv6's minimum MTU of 1280
  static constexpr size_t kMaxDatagrams = 64;

  explicit ArrivalPacker(uint32_t host) : host_(host) {}

  // False if there is no room left. Add a rank's collectives in their order.
  bool add(
      const ArrivalBoard::Member& member,
      uint32_t seq,
      uint64_t common_ns,
      uint64_t error_ns);
  // Returns the datagrams; each still needs setToken().
  std::vector<Datagram>& datagrams() noexcept {
    return datagrams_;
  }

 private:
  bool continues(const ArrivalBoard::Member& member, uint32_t seq) const;
  bool beginRun(
      const ArrivalBoard::Member& member,
      uint32_t seq,
      uint64_t common_ns);

  const uint32_t host_;
  std::vector<Datagram> datagrams_;
  // The run that is open, in the last datagram.
  ArrivalBoard::Member member_;
  size_t run_at_ = 0; // 0: none
  uint32_t next_seq_ = 0;
  uint64_t last_ns_ = 0;
};

// Sets the receiver's token, without which it ignores the datagram.
void setToken(Datagram& datagram, uint64_t token) noexcept;

// Reads a datagram with `token`. Returns nothing if any part of it is invalid.
// May throw std::bad_alloc.
std::optional<ArrivalMessage> readArrivals(
    const char* data,
    size_t size,
    uint64_t token);

} // namespace commprof
