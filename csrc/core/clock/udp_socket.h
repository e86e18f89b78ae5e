// A datagram socket of this process alone: not inherited by exec.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace commprof {

// Where to send a datagram.
struct UdpAddress {
  sockaddr_storage address{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&address);
  }
  // `text` is numeric, IPv4 or IPv6. Throws std::invalid_argument.
  static UdpAddress parse(const std::string& text, uint16_t port);
};

class UdpSocket {
 public:
  // `address` is numeric, IPv4 or IPv6. Both throw std::system_error, or
  // std::invalid_argument for an address that is none.
  static UdpSocket bound(const std::string& address); // to any free port
  static UdpSocket connected(const std::string& address, uint16_t port);

  UdpSocket(UdpSocket&& other) noexcept : fd_(other.fd_) {
    other.fd_ = -1;
  }
  UdpSocket& operator=(UdpSocket&&) = delete;
  ~UdpSocket() {
    close();
  }

  int fd() const noexcept {
    return fd_;
  }
  uint16_t port() const noexcept; // its own
  void close() noexcept;

 private:
  explicit UdpSocket(int fd) noexcept : fd_(fd) {}
  int fd_;
};

} // namespace commprof
