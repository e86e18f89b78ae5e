#include "clock/udp_socket.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace commprof {

namespace {

int openSocket(const IpAddress& address) {
  const int fd = socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
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

UdpSocket UdpSocket::bound(const std::string& address) {
  const IpAddress parsed = IpAddress::parse(address, 0);
  UdpSocket made(openSocket(parsed));
  if (bind(made.fd_, parsed.get(), parsed.length) != 0) {
    fail("bind", address);
  }
  return made;
}

UdpSocket UdpSocket::connected(const std::string& address, uint16_t port) {
  const IpAddress parsed = IpAddress::parse(address, port);
  UdpSocket made(openSocket(parsed));
  if (connect(made.fd_, parsed.get(), parsed.length) != 0) {
    fail("connect", address);
  }
  return made;
}

void UdpSocket::close() noexcept {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

} // namespace commprof
