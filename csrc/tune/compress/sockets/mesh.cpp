#include "tune/compress/sockets/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "tune/compress/exchange/transport.h"

namespace commprof::net {

Mesh::Mesh(
    int rank,
    std::vector<TcpSocket> sockets,
    std::vector<int> names,
    std::chrono::milliseconds timeout)
    : rank_(rank), names_(std::move(names)), timeout_(timeout) {
  for (TcpSocket& socket : sockets) {
    streams_.emplace_back(std::move(socket));
  }
}

void Mesh::begin(
    std::span<const std::span<const std::byte>> send,
    std::span<const std::span<std::byte>> receive,
    int* left) {
  checkUsable();
  // Each rank begins with its successor, so that the load is spread.
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
    fail("poll: " + std::generic_category().message(errno));
  }
  if (ready == 0) {
    fail(
        "nothing moved for " + std::to_string(timeout_.count()) +
        " ms, the process group's timeout; moved until then: " +
        stillWaiting(peers));
  }
  for (size_t i = 0; ready > 0 && i < peers.size(); ++i) {
    if (awaited[i].revents != 0) {
      advance(peers[i], awaited[i].revents);
    }
  }
}

std::string Mesh::stillWaiting(const std::vector<int>& peers) const {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < std::min(peers.size(), kMost); ++i) {
    text += (i == 0 ? "" : "; ") + streams_[size_t(peers[i])].progress() +
        " rank " + std::to_string(nameOf(peers[i]));
  }
  if (peers.size() > kMost) {
    text += "; and " + std::to_string(peers.size() - kMost) + " more ranks";
  }
  return text;
}

void Mesh::advance(int peer, short events) {
  Stream& stream = streams_[size_t(peer)];
  try {
    stream.advance();
    stream.check(events);
  } catch (const StreamError& error) {
    fail("rank " + std::to_string(nameOf(peer)) + ": " + error.what());
  }
}

void Mesh::fail(const std::string& reason) {
  // True if this rank called abandon() or interrupt().
  const bool stopped = !usable();
  abandon();
  throw compress::TransportError(
      stopped ? "exchange was stopped on this rank"
              : "exchange failed: " + reason);
}

void Mesh::checkUsable() const {
  if (!usable()) {
    throw compress::TransportError(
        "exchange failed: this rank gave up or was stopped earlier");
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

namespace {

class Messages final : public compress::Transfer {
 public:
  explicit Messages(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}
  // Unfinished messages leave part of their bytes in the streams, so the mesh
  // cannot carry further messages.
  ~Messages() override {
    if (left_ != 0) {
      mesh_->abandon();
    }
  }
  void begin(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) {
    mesh_->begin(send, recv, &left_);
  }
  void wait() override {
    mesh_->finish(&left_);
  }

 private:
  const std::shared_ptr<Mesh> mesh_;
  int left_ = 0;
};

} // namespace

SocketTransport::SocketTransport(
    std::shared_ptr<Mesh> mesh,
    std::unique_ptr<compress::Transport> sums)
    : mesh_(std::move(mesh)), sums_(std::move(sums)) {}

std::unique_ptr<compress::Transfer> SocketTransport::exchange(
    std::span<const std::span<const std::byte>> send,
    std::span<const std::span<std::byte>> recv) {
  auto messages = std::make_unique<Messages>(mesh_);
  messages->begin(send, recv);
  return messages;
}

std::unique_ptr<compress::Transfer> SocketTransport::allReduceSum(
    std::span<float> data) {
  return sums_->allReduceSum(data);
}

} // namespace commprof::net
