// Messages between this rank and one other, each direction in order. Nothing
// moves but in advance(): no thread of its own, no memory but for what is
// under way, and what is sent is the caller's again once the kernel has it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <stdexcept>

#include "compress/sockets/tcp_socket.h"

namespace commprof::net {

// what() does not name the rank.
class StreamError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Stream {
 public:
  Stream() = default; // to nobody
  explicit Stream(TcpSocket socket) : socket_(std::move(socket)) {}

  // `left` counts messages under way and is one less when this one is done;
  // it and the bytes must live until then, or until abandon().
  void send(std::span<const std::byte> bytes, int* left);
  void receive(std::span<std::byte> bytes, int* left);

  // As far as it goes without waiting. Throws StreamError.
  void advance();

  int fd() const noexcept {
    return socket_.fd();
  }
  // For poll(), of what advance() could not do; 0 where nothing is under way.
  short awaited() const noexcept;
  // What poll() said; throws StreamError where the other end takes no more.
  void check(short events) const;
  // Of the message that is due next, for errors: "2 of 9 bytes from".
  std::string progress() const;

  // Forgets all that is under way. The other end may read what it was sent,
  // and then the end.
  void abandon() noexcept;

 private:
  // Before each message: its number, which counts from 0 in each direction,
  // and its length. Both ends know them; where they differ, ranks do not do
  // the same, and one would take another's bytes for its own.
  struct Frame {
    uint64_t number = 0;
    uint64_t bytes = 0;
  };
  static constexpr size_t kFrameBytes = sizeof(Frame);

  template <class Byte>
  struct Message {
    Frame frame;
    std::span<Byte> bytes;
    int* left = nullptr;
    size_t done = 0; // the frame included
    size_t length() const {
      return kFrameBytes + bytes.size();
    }
  };

  bool sendSome();
  bool receiveSome();
  template <class Byte>
  bool moved(std::deque<Message<Byte>>& queue, size_t bytes);

  TcpSocket socket_;
  std::deque<Message<const std::byte>> sending_;
  std::deque<Message<std::byte>> receiving_;
  uint64_t sent_ = 0, received_ = 0; // numbers of the next messages
  Frame arrived_; // of the message that is being received
};

} // namespace commprof::net
