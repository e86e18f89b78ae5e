// How bytes get from rank to rank: the one thing that an exchange needs from
// outside. Sockets and c10d stand behind it in training, threads in the core's
// own tests.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace commprof::compress {

// A rank did not answer, or the group is broken. what() names the operation.
class TransportError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Something under way. wait() must be called exactly once, before the buffers
// are touched again; it throws TransportError. Dropping one unwaited is allowed
// only while an exception unwinds.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
};

// Used by one thread. All ranks start the same transfers in the same order;
// several may be in flight. What begins as one call is one message per peer.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // For each peer r: sends send[r] to it and fills recv[r] from it. Lengths
  // agree between the two ends. Entries of the rank itself are ignored; an
  // empty one sends nothing. The same bytes may go to several peers.
  virtual std::unique_ptr<Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) = 0;

  // In place, the same bits on all ranks.
  virtual std::unique_ptr<Transfer> allReduceSum(std::span<float> data) = 0;

  // What errors call a rank.
  virtual int nameOf(int rank) const {
    return rank;
  }

  // Nothing more will come of this rank: those that wait for its messages
  // should learn of it before their timeouts tell, where the way knows how.
  virtual void abandon() noexcept {}
  // From any thread: what another one waits for here should fail, likewise.
  virtual void interrupt() noexcept {}
};

} // namespace commprof::compress
