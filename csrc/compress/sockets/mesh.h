// A TCP connection between each two ranks of a group, and what is under way on
// them.
//
// A compressor's transport over connections of its own: its messages move in
// the thread that waits for them, without another thread to wake on the way.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/exchange/transport.h"
#include "compress/sockets/stream.h"
#include "compress/sockets/tcp_socket.h"

namespace commprof::net {

// Used by one thread at a time.
class Mesh {
 public:
  // `sockets`: one per rank, this one's own being none. `names`: what ranks are
  // called in errors, by rank. Where nothing moves for as long as `timeout`,
  // those that are waited for are taken to be gone.
  Mesh(
      int rank,
      std::vector<TcpSocket> sockets,
      std::vector<int> names,
      std::chrono::milliseconds timeout);

  int rank() const noexcept {
    return rank_;
  }
  int size() const noexcept {
    return int(streams_.size());
  }
  int nameOf(int rank) const {
    return names_[size_t(rank)];
  }

  // Begins what compress::Transport::exchange() describes. `left` counts its
  // messages that are not done; it and all bytes must live until there are
  // none, or until abandon(). Throws compress::TransportError, which names the
  // rank, as does finish().
  void begin(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> receive,
      int* left);
  // Blocks until `left` is 0.
  void finish(const int* left);

  // Forgets all that is under way, and lets the other ranks know that nothing
  // more will come of this one. All later exchanges fail.
  void abandon() noexcept;
  // From any thread: what is under way fails, and all later exchanges.
  void interrupt() noexcept;
  // Whether neither has happened. Any thread.
  bool usable() const noexcept {
    return usable_.load();
  }

 private:
  void advance(int peer, short events = 0); // what poll() said of it
  void awaitAny();
  void checkUsable() const;
  [[noreturn]] void fail(const std::string& reason);
  std::string stillWaiting(const std::vector<int>& peers) const;

  const int rank_;
  const std::vector<int> names_;
  const std::chrono::milliseconds timeout_;
  std::vector<Stream> streams_; // by rank
  std::atomic<bool> usable_{true};
};

class SocketTransport final : public compress::Transport {
 public:
  // `sums`: of the same ranks, does the all-reduces. The mesh may have other
  // users before and after, but none meanwhile.
  SocketTransport(
      std::shared_ptr<Mesh> mesh,
      std::unique_ptr<compress::Transport> sums);

  int rank() const override {
    return mesh_->rank();
  }
  int size() const override {
    return mesh_->size();
  }
  std::unique_ptr<compress::Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) override;
  std::unique_ptr<compress::Transfer> allReduceSum(
      std::span<float> data) override;
  int nameOf(int rank) const override {
    return mesh_->nameOf(rank);
  }
  // Both of messages only: a sum runs into the timeout of `sums`.
  void abandon() noexcept override {
    mesh_->abandon();
  }
  void interrupt() noexcept override {
    mesh_->interrupt();
  }

 private:
  const std::shared_ptr<Mesh> mesh_;
  const std::unique_ptr<compress::Transport> sums_;
};

} // namespace commprof::net
