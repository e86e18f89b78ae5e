// A non-blocking TCP socket that only this process uses. Forked children close
// it; otherwise they would keep the connection open after this process ends.
// exec() closes it as well.
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
  // `address`: numeric, IPv4 or IPv6. Any other text throws
  // std::invalid_argument. listening(), connected() and accepted() throw
  // std::system_error. After the deadline, connected() throws it with
  // std::errc::timed_out.
  static TcpSocket listening(const std::string& address); // on any free port
  static TcpSocket connected(
      const std::string& address,
      uint16_t port,
      Deadline deadline);
  // Accepts a connection; returns nothing if none is pending.
  std::optional<TcpSocket> accepted() const;

  TcpSocket() = default;
  TcpSocket(TcpSocket&& other) noexcept;
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  int fd() const noexcept {
    return fd_;
  }
  uint16_t port() const noexcept; // local port

  // Sends a short message; blocks. Throws std::system_error, with
  // std::errc::timed_out after the deadline.
  void sendAll(const void* data, size_t bytes, Deadline deadline) const;

 private:
  struct Open;
  explicit TcpSocket(int fd);
  int fd_ = -1;
};

} // namespace commprof::net
