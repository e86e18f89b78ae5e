#include "tune/compress/sockets/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>

#include "base/ip_address.h"

namespace commprof::net {

namespace {

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

int open(const IpAddress& address) {
  const int fd =
      socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    fail("socket");
  }
  return fd;
}

void waitFor(int fd, short events, Deadline deadline, const std::string& what) {
  using std::chrono::milliseconds;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd one{fd, events, 0};
    const int ready =
        poll(&one, 1, int(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (ready > 0) {
      return;
    }
    if (ready == 0) {
      fail(what, ETIMEDOUT);
    }
    if (errno != EINTR) {
      fail("poll");
    }
  }
}

void sendAtOnce(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
    fail("TCP_NODELAY");
  }
}

} // namespace

TcpSocket TcpSocket::listening(const std::string& address) {
  const IpAddress parsed = IpAddress::parse(address, 0);
  TcpSocket made(open(parsed));
  if (bind(made.fd_, parsed.get(), parsed.length) != 0) {
    fail("bind " + address);
  }
  if (listen(made.fd_, SOMAXCONN) != 0) {
    fail("listen on " + address);
  }
  return made;
}

TcpSocket TcpSocket::connected(
    const std::string& address,
    uint16_t port,
    Deadline deadline) {
  const IpAddress parsed = IpAddress::parse(address, port);
  const std::string what =
      "connect to " + address + " port " + std::to_string(port);
  TcpSocket made(open(parsed));
  if (connect(made.fd_, parsed.get(), parsed.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) {
      fail(what);
    }
    waitFor(made.fd_, POLLOUT, deadline, what);
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(made.fd_, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      fail(what);
    }
    if (error != 0) {
      fail(what, error);
    }
  }
  sendAtOnce(made.fd_);
  return made;
}

std::optional<TcpSocket> TcpSocket::accepted() const {
  for (;;) {
    TcpSocket made(
        accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (made.fd_ >= 0) {
      sendAtOnce(made.fd_);
      return made;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return std::nullopt;
    }
    if (errno != EINTR && errno != ECONNABORTED) {
      fail("accept");
    }
  }
}

// The set of open sockets. Its mutex is held during fork(), so that the set is
// consistent in the child.
struct TcpSocket::Open {
  std::mutex mutex;
  std::set<TcpSocket*> sockets;

  static Open& instance() {
    static Open& open = made();
    return open;
  }

 private:
  static Open& made() {
    static Open& open = *new Open(); // outlives all static objects
    pthread_atfork(
        [] { open.mutex.lock(); },
        [] { open.mutex.unlock(); },
        [] {
          for (TcpSocket* socket : open.sockets) {
            close(std::exchange(socket->fd_, -1));
          }
          open.sockets.clear();
          open.mutex.unlock();
        });
    return open;
  }
};

TcpSocket::TcpSocket(int fd) : fd_(fd) {
  if (fd_ >= 0) {
    Open& open = Open::instance();
    const std::lock_guard<std::mutex> lock(open.mutex);
    open.sockets.insert(this);
  }
}

TcpSocket::TcpSocket(TcpSocket&& other) noexcept {
  *this = std::move(other);
}

TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
  Open& open = Open::instance();
  const std::lock_guard<std::mutex> lock(open.mutex);
  std::swap(fd_, other.fd_);
  for (TcpSocket* socket : {this, &other}) {
    socket->fd_ >= 0 ? void(open.sockets.insert(socket))
                     : void(open.sockets.erase(socket));
  }
  return *this;
}

TcpSocket::~TcpSocket() {
  if (fd_ >= 0) {
    Open& open = Open::instance();
    const std::lock_guard<std::mutex> lock(open.mutex);
    open.sockets.erase(this);
    close(fd_);
  }
}

uint16_t TcpSocket::port() const noexcept {
  return portOf(fd_);
}

void TcpSocket::sendAll(const void* data, size_t bytes, Deadline deadline)
    const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd_, from, bytes, MSG_NOSIGNAL);
    if (sent >= 0) {
      from += sent;
      bytes -= size_t(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      waitFor(fd_, POLLOUT, deadline, "send");
    } else if (errno != EINTR) {
      fail("send");
    }
  }
}

} // namespace commprof::net
