// A stream socket of this process alone: closed in forked children, which would
// keep the connection open after this process, and not inherited by exec. Never
// blocking.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace commprof::net {

using Deadline = std::chrono::steady_clock::time_point;

class TcpSocket {
 public:
  // `address` is numeric, IPv4 or IPv6. All throw std::system_error, of
  // std::errc::timed_out after the deadline, or std::invalid_argument for an
  // address that is none.
  static TcpSocket listening(const std::string& address); // on any free port
  static TcpSocket connected(
      const std::string& address,
      uint16_t port,
      Deadline deadline);
  // None where nobody waits to be let in.
  std::optional<TcpSocket> accepted() const;

  TcpSocket() = default; // none
  TcpSocket(TcpSocket&& other) noexcept;
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  int fd() const noexcept {
    return fd_;
  }
  uint16_t port() const noexcept; // its own

  // Blocking, of a short message. Throws std::system_error, of
  // std::errc::timed_out after the deadline.
  void sendAll(const void* data, size_t bytes, Deadline deadline) const;

 private:
  struct Open; // all of this process
  explicit TcpSocket(int fd);
  int fd_ = -1;
};

} // namespace commprof::net
