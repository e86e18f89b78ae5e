#include "core/clock/udp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace commprof {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Numeric only: no name server is asked.
Addresses parse(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (getaddrinfo(address.c_str(), service.c_str(), &hints, &found) != 0) {
    throw std::invalid_argument("no numeric IP address: '" + address + "'");
  }
  return {found, &freeaddrinfo};
}

int open(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    throw std::system_error(errno, std::generic_category(), "socket");
  }
  return fd;
}

[[noreturn]] void fail(const char* call, const std::string& address) {
  throw std::system_error(
      errno, std::generic_category(), call + (" " + address));
}

} // namespace

UdpAddress UdpAddress::parse(const std::string& text, uint16_t port) {
  const Addresses parsed = commprof::parse(text, port);
  UdpAddress made;
  made.length = parsed->ai_addrlen;
  std::memcpy(&made.address, parsed->ai_addr, made.length);
  return made;
}

UdpSocket UdpSocket::bound(const std::string& address) {
  const Addresses parsed = parse(address, 0);
  UdpSocket made(open(*parsed));
  if (bind(made.fd_, parsed->ai_addr, parsed->ai_addrlen) != 0) {
    fail("bind", address);
  }
  return made;
}

UdpSocket UdpSocket::connected(const std::string& address, uint16_t port) {
  const Addresses parsed = parse(address, port);
  UdpSocket made(open(*parsed));
  if (connect(made.fd_, parsed->ai_addr, parsed->ai_addrlen) != 0) {
    fail("connect", address);
  }
  return made;
}

uint16_t UdpSocket::port() const noexcept {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return 0;
  }
  return ntohs(
      own.ss_family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
          : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

void UdpSocket::close() noexcept {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

} // namespace commprof
