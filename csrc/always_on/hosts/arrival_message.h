// What one host's carrier tells another's: arrivals of its ranks, packed into
// datagrams that need no fragmenting.
//
// A datagram is a header and runs of consecutive collectives of one rank in one
// group. Times are by rank 0's clock; within a run each but the first is the
// difference from the one before, as a variable-length number.
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
  uint32_t host = 0; // who sent it, counted from 1
  uint64_t error_ns = 0; // bound on the error of its times
  std::vector<ArrivalRun> runs;
};

using Datagram = std::vector<char>;

// Not thread-safe; add() may throw std::bad_alloc.
class ArrivalPacker {
 public:
  static constexpr size_t kMaxBytes = 1200; // fits every path of IPv6's 1280
  static constexpr size_t kMaxDatagrams = 64;

  explicit ArrivalPacker(uint32_t host) : host_(host) {}

  // False if there is no room left. One rank's collectives in ascending order.
  bool add(
      const ArrivalBoard::Member& member,
      uint32_t seq,
      uint64_t common_ns,
      uint64_t error_ns);
  // Each still needs a token.
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

// The receiver's own, which strangers do not know.
void setToken(Datagram& datagram, uint64_t token) noexcept;

// Nothing, unless every byte is as the packer would have it. May throw
// std::bad_alloc.
std::optional<ArrivalMessage> readArrivals(
    const char* data,
    size_t size,
    uint64_t token);

} // namespace commprof
