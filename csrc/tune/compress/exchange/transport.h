// Interface for sending bytes between ranks. Implementations use sockets and
// c10d in training, and threads in tests.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace commprof::compress {

// Thrown if a rank or the whole group fails. what() names the operation.
class TransportError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A transfer in flight. Call wait() exactly once, before the buffers are used
// again; it throws TransportError. Only stack unwinding may destroy a transfer
// without wait().
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
};

// Not thread-safe. All ranks start the same transfers in the same order.
// Several transfers may be in flight. Each call sends one message per peer.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sends send[r] to each peer r, and receives recv[r] from peer r. Lengths
  // must agree at both ends. The rank's own entries are ignored. Empty entries
  // transfer nothing. Several entries of `send` may point to the same bytes.
  virtual std::unique_ptr<Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) = 0;

  // Sums in place. The result is bitwise equal on all ranks.
  virtual std::unique_ptr<Transfer> allReduceSum(std::span<float> data) = 0;

  // Returns the number by which error messages name `rank`.
  virtual int nameOf(int rank) const {
    return rank;
  }

  // Announces that this rank sends nothing more, so that peers do not wait
  // until their timeouts. Some implementations do nothing.
  virtual void abandon() noexcept {}
  // Makes the waits of other threads fail. Some implementations do nothing. Any
  // thread may call it.
  virtual void interrupt() noexcept {}
};

} // namespace commprof::compress
