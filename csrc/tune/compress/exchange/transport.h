// Interface through which an exchange sends bytes between ranks.
// Implementations use sockets and c10d in training, and threads in the core's
// own tests.
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

// A transfer in flight. wait() must be called exactly once, before the buffers
// are used again; it throws TransportError. A transfer may be destroyed without
// wait() only during stack unwinding.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
};

// Not thread-safe. All ranks start the same transfers in the same order;
// several may be in flight. Each call sends one message per peer.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // For each peer r: sends send[r] to it and fills recv[r] from it. Lengths
  // must agree at both ends. The rank's own entries are ignored; an empty entry
  // sends nothing. The same bytes may be sent to several peers.
  virtual std::unique_ptr<Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) = 0;

  // Sums in place; the result is equal to the bit on all ranks.
  virtual std::unique_ptr<Transfer> allReduceSum(std::span<float> data) = 0;

  // Returns the number by which error messages name `rank`.
  virtual int nameOf(int rank) const {
    return rank;
  }

  // Announces that this rank sends nothing more, so that peers fail before
  // their timeouts, if the implementation supports it.
  virtual void abandon() noexcept {}
  // Makes other threads' waits fail, if supported. Any thread may call it.
  virtual void interrupt() noexcept {}
};

} // namespace commprof::compress
