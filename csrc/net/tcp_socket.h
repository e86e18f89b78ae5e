// A stream socket of this process alone: not inherited by exec, never blocking.
#pragma once

#include <chrono>
#include <cstdint>
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
  TcpSocket accepted(Deadline deadline) const;

  TcpSocket() = default; // none
  TcpSocket(TcpSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~TcpSocket();

  int fd() const noexcept {
    return fd_;
  }
  uint16_t port() const noexcept; // its own

  // Blocking, of short messages. Throw std::system_error, of
  // std::errc::timed_out after the deadline, of std::errc::connection_aborted
  // where the other end is closed.
  void sendAll(const void* data, size_t bytes, Deadline deadline) const;
  void receiveAll(void* data, size_t bytes, Deadline deadline) const;

 private:
  explicit TcpSocket(int fd) noexcept : fd_(fd) {}
  int fd_ = -1;
};

} // namespace commprof::net
