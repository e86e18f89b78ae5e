// Messages between the carriers of two hosts. For each collective, a message
// has the last arrival that the sender knows. A message is packed into
// datagrams that need no fragmentation.
//
// A datagram consists of a header and runs. A run holds consecutive collectives
// of one group. Times are by rank 0's clock. In a run, a time is stored as its
// difference from the previous time, in a variable-length number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "always_on/arrivals/arrival_board.h"

namespace commprof {

// Arrivals at one collective that a host knows.
struct KnownArrivals {
  uint32_t seq = 0;
  uint32_t present = 0; // number of ranks that have arrived
  uint64_t last_ns = 0; // time of the last arrival, by rank 0's clock
  uint32_t last_rank = 0; // global rank of the last arrival
  // Arrivals of single ranks, by rank 0's clock; empty if the operation does
  // not need them. Their `kind` is not sent.
  std::vector<ArrivalBoard::Arrival> listed{};
};

struct ArrivalRun {
  uint64_t key = 0;
  uint32_t size = 0;
  std::vector<KnownArrivals> collectives{};
};

struct ArrivalHeader {
  uint64_t token = 0; // token that the receiver accepts
  uint64_t own_token = 0; // token that the sender accepts
  uint32_t host = 0; // index of the sending host, from 1
  // Number of hosts in the sender's subtree or, if the message goes down, in
  // the whole tree.
  uint32_t hosts = 0;
  bool goes_down = false; // the receiver is a child
};

struct ArrivalMessage {
  ArrivalHeader header;
  uint64_t error_ns = 0; // bound on the error of the message's times
  std::vector<ArrivalRun> runs;
};

using Datagram = std::vector<char>;

// Not thread-safe; add() may throw std::bad_alloc.
class ArrivalPacker {
 public:
  static constexpr size_t kMaxBytes = 1200; // fits IPv6's minimum MTU of 1280
  static constexpr size_t kMaxDatagrams = 16;
  static constexpr size_t kMostListed = 48; // arrivals of single ranks in a run

  explicit ArrivalPacker(const ArrivalHeader& header) : header_(header) {}

  // Adds one collective. Add a group's collectives in their order. Returns
  // false if there was no room for all of it. Then nothing was added, or the
  // collective was added with the arrivals of only some single ranks.
  bool add(
      uint64_t key,
      uint32_t size,
      const KnownArrivals& known,
      uint64_t error_ns);
  // If there is no datagram yet, adds an empty one as a sign of life.
  void addEmpty();
  const std::vector<Datagram>& datagrams() const noexcept {
    return datagrams_;
  }

 private:
  bool beginDatagram();
  bool addPart(
      uint64_t key,
      uint32_t size,
      const KnownArrivals& known,
      size_t first_listed,
      uint64_t error_ns);

  const ArrivalHeader header_;
  std::vector<Datagram> datagrams_;
  // Key of the open run's group. The open run is the run that add() may extend.
  uint64_t key_ = 0;
  size_t run_at_ = 0; // position of the open run; 0: none
  KnownArrivals before_; // last collective of the open run
};

// Returns nothing if the datagram is invalid or has another token. May throw
// std::bad_alloc.
std::optional<ArrivalMessage> readArrivals(
    const char* data,
    size_t size,
    uint64_t token);

} // namespace commprof
