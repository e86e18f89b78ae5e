// An IP address and a port, as the kernel takes them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace commprof {

struct IpAddress {
  sockaddr_storage address{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&address);
  }
  sa_family_t family() const noexcept {
    return address.ss_family;
  }
  // `text` is numeric, IPv4 or IPv6; no name server is asked. Throws
  // std::invalid_argument.
  static IpAddress parse(const std::string& text, uint16_t port);
};

// Returns the port of the socket's own end; 0 if it is not bound.
uint16_t portOf(int fd) noexcept;

} // namespace commprof
