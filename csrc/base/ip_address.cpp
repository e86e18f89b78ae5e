#include "base/ip_address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <stdexcept>

namespace commprof {

IpAddress IpAddress::parse(const std::string& text, uint16_t port) {
  addrinfo hints{};
  // Gives one answer instead of one per socket type.
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (getaddrinfo(text.c_str(), service.c_str(), &hints, &found) != 0) {
    throw std::invalid_argument("not a numeric IP address: '" + text + "'");
  }
  IpAddress made;
  made.length = found->ai_addrlen;
  std::memcpy(&made.address, found->ai_addr, made.length);
  freeaddrinfo(found);
  return made;
}

uint16_t portOf(int fd) noexcept {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return 0;
  }
  return ntohs(
      own.ss_family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
          : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

} // namespace commprof
