// Messages between this rank and one other rank, in order for each direction.
// Data moves only in advance().
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

  // Both functions queue a message. `left` counts unfinished messages: it is
  // incremented now, and decremented when the message is complete. `left` and
  // the bytes must stay valid until then, or until abandon().
  void send(std::span<const std::byte> bytes, int* left);
  void receive(std::span<std::byte> bytes, int* left);

  // Moves as many bytes as possible without blocking. Throws StreamError.
  void advance();

  int fd() const noexcept {
    return socket_.fd();
  }
  // Events to poll() for before advance(); 0 if nothing is in flight.
  short awaited() const noexcept;
  // `events`: result of poll(). Throws StreamError if the peer closed the
  // connection.
  void check(short events) const;
  // Returns the progress of the next message, such as "2 of 9 bytes from". The
  // caller adds the rank.
  std::string progress() const;

  // Drops all messages in flight. The peer can read the bytes that were sent,
  // and then end-of-file.
  void abandon() noexcept;

 private:
  // Precedes each message. `number`: index of the message in its direction,
  // from 0. The receiver knows both values in advance. Other values show that
  // the ranks exchange different messages.
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
  Frame arrived_;
};

} // namespace commprof::net
