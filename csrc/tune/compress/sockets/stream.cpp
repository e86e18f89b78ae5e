#include "tune/compress/sockets/stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

namespace commprof::net {

namespace {

// Largest number of bytes moved per call. With a larger number, one direction
// would delay the other for long.
constexpr size_t kMostBytes = size_t(1) << 20;

constexpr const char* kEnded =
    "it closed the connection, because it ended or gave up after an error";

bool wouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// ECONNRESET: the peer ended with unread messages.
[[noreturn]] void fail(int error) {
  const bool ended = error == EPIPE || error == ECONNRESET;
  throw StreamError(ended ? kEnded : std::generic_category().message(error));
}

int restOf(
    void* frame,
    size_t frame_bytes,
    void* bytes,
    size_t length,
    size_t done,
    iovec* parts) {
  int count = 0;
  if (done < frame_bytes) {
    parts[count++] = {static_cast<char*>(frame) + done, frame_bytes - done};
  }
  const size_t at = done - std::min(done, frame_bytes);
  if (at < length) {
    const size_t most = std::min(length - at, kMostBytes);
    parts[count++] = {static_cast<char*>(bytes) + at, most};
  }
  return count;
}

msghdr headerOf(iovec* parts, int count) {
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = size_t(count);
  return header;
}

size_t sum(const iovec* parts, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    bytes += parts[i].iov_len;
  }
  return bytes;
}

} // namespace

void Stream::send(std::span<const std::byte> bytes, int* left) {
  ++*left;
  sending_.push_back({{sent_++, bytes.size()}, bytes, left, 0});
}

void Stream::receive(std::span<std::byte> bytes, int* left) {
  ++*left;
  receiving_.push_back({{received_++, bytes.size()}, bytes, left, 0});
}

void Stream::advance() {
  for (bool more = true; more;) {
    const bool sent = sendSome();
    more = receiveSome() || sent;
  }
}

// sendSome() and receiveSome() return true if another call may move more bytes,
// and false if the kernel moved fewer bytes than requested.
bool Stream::sendSome() {
  if (sending_.empty()) {
    return false;
  }
  auto& message = sending_.front();
  iovec parts[2];
  const int count = restOf(
      &message.frame,
      kFrameBytes,
      const_cast<std::byte*>(message.bytes.data()),
      message.bytes.size(),
      message.done,
      parts);
  const msghdr header = headerOf(parts, count);
  const ssize_t bytes =
      sendmsg(socket_.fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (bytes < 0) {
    if (wouldBlock(errno)) {
      return false;
    }
    fail(errno);
  }
  const bool all = size_t(bytes) == sum(parts, count);
  return moved(sending_, size_t(bytes)) || all;
}

bool Stream::receiveSome() {
  if (receiving_.empty()) {
    return false;
  }
  auto& message = receiving_.front();
  iovec parts[2];
  const int count = restOf(
      &arrived_,
      kFrameBytes,
      message.bytes.data(),
      message.bytes.size(),
      message.done,
      parts);
  msghdr header = headerOf(parts, count);
  const ssize_t bytes = recvmsg(socket_.fd(), &header, MSG_DONTWAIT);
  if (bytes < 0) {
    if (wouldBlock(errno)) {
      return false;
    }
    fail(errno);
  }
  if (bytes == 0) {
    throw StreamError(kEnded);
  }
  const size_t before = message.done;
  const Frame due = message.frame;
  const bool all = size_t(bytes) == sum(parts, count);
  if (before < kFrameBytes && before + size_t(bytes) >= kFrameBytes &&
      (arrived_.number != due.number || arrived_.bytes != due.bytes)) {
    throw StreamError(
        "its message " + std::to_string(arrived_.number) + " has " +
        std::to_string(arrived_.bytes) + " bytes where message " +
        std::to_string(due.number) + " of " + std::to_string(due.bytes) +
        " bytes was due: the ranks exchange different messages");
  }
  return moved(receiving_, size_t(bytes)) || all;
}

template <class Byte>
bool Stream::moved(std::deque<Message<Byte>>& queue, size_t bytes) {
  auto& message = queue.front();
  message.done += bytes;
  if (message.done < message.length()) {
    return false;
  }
  --*message.left;
  queue.pop_front();
  return true;
}

short Stream::awaited() const noexcept {
  // If nothing is to be received, only POLLRDHUP shows that the peer closed the
  // connection.
  const int sending = sending_.empty() ? 0 : POLLOUT;
  const int receiving = receiving_.empty() ? 0 : POLLIN;
  const int end = sending != 0 && receiving == 0 ? POLLRDHUP : 0;
  return short(sending | receiving | end);
}

void Stream::check(short events) const {
  if ((events & POLLRDHUP) != 0 && receiving_.empty()) {
    throw StreamError(kEnded);
  }
}

std::string Stream::progress() const {
  const auto text = [](const auto& message, const char* direction) {
    const size_t done = message.done - std::min(message.done, kFrameBytes);
    return std::to_string(done) + " of " +
        std::to_string(message.bytes.size()) + " bytes " + direction;
  };
  return !receiving_.empty() ? text(receiving_.front(), "from")
      : !sending_.empty()    ? text(sending_.front(), "to")
                             : std::string("nothing with");
}

void Stream::abandon() noexcept {
  sending_.clear();
  receiving_.clear();
  if (socket_.fd() >= 0) {
    shutdown(socket_.fd(), SHUT_WR); // close() would discard unread data
  }
}

} // namespace commprof::net
