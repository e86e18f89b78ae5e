// Messages between this rank and one other rank, in order for each direction.
// Data moves only in advance(). The class uses no thread, and memory only for
// messages in flight. Sent bytes may be reused once the kernel has copied them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <stdexcept>

#include "tune/compress/sockets/tcp_socket.h"

namespace commprof::net {

// Error of one connection; what() does not name the rank.
class StreamError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Stream {
 public:
  Stream() = default; // not connected
  explicit Stream(TcpSocket socket) : socket_(std::move(socket)) {}

  // Queue a message. `left` counts messages in flight and is decremented once
  // this message is complete. `left` and the bytes must stay valid until then,
  // or until abandon().
  void send(std::span<const std::byte> bytes, int* left);
  void receive(std::span<std::byte> bytes, int* left);

  // Moves as many bytes as possible without blocking. Throws StreamError.
  void advance();

  int fd() const noexcept {
    return socket_.fd();
  }
  // Events to poll() for before advance(); 0 if nothing is in flight.
  short awaited() const noexcept;
  // Checks poll()'s result; throws StreamError if the peer stopped reading.
  void check(short events) const;
  // Progress of the next message, as the beginning of a phrase that ends with
  // the rank: "2 of 9 bytes from".
  std::string progress() const;

  // Drops all messages in flight. The peer can still read what was sent,
  // followed by end-of-file.
  void abandon() noexcept;

 private:
  // Precedes each message: the message's index, which counts from 0 in each
  // direction, and its length. The receiver knows both values in advance; if
  // others arrive, the ranks do not exchange the same messages.
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
    size_t done = 0; // bytes moved, including the frame
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
  uint64_t sent_ = 0, received_ = 0; // indices of the next messages
  Frame arrived_; // frame of the message being received
};

} // namespace commprof::net
