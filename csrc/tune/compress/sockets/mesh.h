// Mesh: this rank's TCP connections to all other ranks of a group, and the
// messages in flight on them.
//
// SocketTransport: a compressor's transport over its own connections. The
// thread that waits for messages also moves them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tune/compress/exchange/transport.h"
#include "tune/compress/sockets/stream.h"
#include "tune/compress/sockets/tcp_socket.h"

namespace commprof::net {

// Not thread-safe, unless noted.
class Mesh {
 public:
  // `sockets`: one per rank, empty for this rank. `names`: the ranks' numbers
  // in error messages. If no byte moves for `timeout`, exchanges fail.
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

  // Starts an exchange, see compress::Transport::exchange(). `left` counts the
  // unfinished messages. `left` and all bytes must stay valid until `left` is
  // 0, or until abandon(). begin() and finish() throw compress::TransportError.
  void begin(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> receive,
      int* left);
  // Blocks until `left` is 0.
  void finish(const int* left);

  // Drops all messages in flight and signals the other ranks that this rank
  // sends nothing more. All later exchanges fail.
  void abandon() noexcept;
  // Makes all current and later exchanges fail. Callable from any thread.
  void interrupt() noexcept;
  // True until abandon() or interrupt() is called. Callable from any thread.
  bool usable() const noexcept {
    return usable_.load();
  }

 private:
  void advance(int peer, short events = 0);
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
  // `sums`: transport for all-reduces of the same ranks. While this object
  // exists, other code must not use the mesh.
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
  // abandon() and interrupt() do not end all-reduces, which end with the
  // timeout of `sums`.
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
