#include "net/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "compress/transport.h"

namespace commprof::net {

Mesh::Mesh(
    int rank,
    std::vector<TcpSocket> sockets,
    std::chrono::milliseconds timeout)
    : rank_(rank), timeout_(timeout) {
  for (TcpSocket& socket : sockets) {
    streams_.emplace_back(std::move(socket));
  }
}

void Mesh::begin(
    std::span<const std::span<const std::byte>> send,
    std::span<const std::span<std::byte>> receive,
    int* left) {
  checkUsable();
  // Each rank begins with its next, so that not all send to the same one.
  for (int step = 1; step < size(); ++step) {
    const int to = (rank_ + step) % size();
    if (!send[size_t(to)].empty()) {
      streams_[size_t(to)].send(send[size_t(to)], left);
    }
    const int from = (rank_ + size() - step) % size();
    if (!receive[size_t(from)].empty()) {
      streams_[size_t(from)].receive(receive[size_t(from)], left);
    }
  }
  for (int step = 1; step < size(); ++step) {
    advance((rank_ + step) % size());
  }
}

void Mesh::finish(const int* left) {
  while (*left != 0) {
    checkUsable();
    awaitAny();
  }
}

// Waits until one of the streams can move again, and moves all that can.
void Mesh::awaitAny() {
  std::vector<pollfd> awaited;
  std::vector<int> peers;
  for (int peer = 0; peer < size(); ++peer) {
    const short events = streams_[size_t(peer)].awaited();
    if (events != 0) {
      awaited.push_back({streams_[size_t(peer)].fd(), events, 0});
      peers.push_back(peer);
    }
  }
  const auto most = std::chrono::milliseconds(std::numeric_limits<int>::max());
  const int ready = poll(
      awaited.data(), awaited.size(), int(std::min(timeout_, most).count()));
  if (ready < 0 && errno != EINTR) {
    fail(peers.front(), "poll: " + std::generic_category().message(errno));
  }
  if (ready == 0) {
    fail(
        peers.front(),
        "nothing moved for " + std::to_string(timeout_.count()) +
            " ms, the process group's timeout; " +
            streams_[size_t(peers.front())].progress());
  }
  for (size_t i = 0; ready > 0 && i < peers.size(); ++i) {
    if (awaited[i].revents != 0) {
      advance(peers[i], awaited[i].revents);
    }
  }
}

void Mesh::advance(int peer, short events) {
  Stream& stream = streams_[size_t(peer)];
  try {
    stream.advance();
    stream.check(events);
  } catch (const StreamError& error) {
    fail(peer, error.what());
  }
}

void Mesh::fail(int peer, const std::string& reason) {
  abandon();
  throw compress::TransportError(
      "exchange with rank " + std::to_string(peer) + " failed: " + reason);
}

void Mesh::checkUsable() const {
  if (!usable()) {
    throw compress::TransportError(
        "exchange failed: an earlier one was given up on this rank");
  }
}

void Mesh::abandon() noexcept {
  usable_.store(false);
  for (Stream& stream : streams_) {
    stream.abandon();
  }
}

void Mesh::interrupt() noexcept {
  usable_.store(false);
  for (const Stream& stream : streams_) {
    if (stream.fd() >= 0) {
      shutdown(stream.fd(), SHUT_RDWR); // ends poll()
    }
  }
}

} // namespace commprof::net
