// A TCP connection between each two ranks of a group, and what is under way on
// them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

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

} // namespace commprof::net
