// A datagram socket, closed on exec.
#pragma once

#include <cstdint>
#include <string>

#include "base/ip_address.h"

namespace commprof {

class UdpSocket {
 public:
  // `address` is numeric, IPv4 or IPv6. bound() and connected() throw
  // std::system_error, or std::invalid_argument for an invalid address.
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
  uint16_t port() const noexcept { // the socket's own port
    return portOf(fd_);
  }
  void close() noexcept;

 private:
  explicit UdpSocket(int fd) noexcept : fd_(fd) {}
  int fd_;
};

} // namespace commprof
