#include "clock/clock_responder.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/clock.h"
#include "base/helper_thread.h"
#include "clock/clock_message.h"

namespace commprof {

ClockResponder::ClockResponder(
    const std::string& address,
    uint64_t token,
    uint32_t world_size)
    : socket_(UdpSocket::bound(address)),
      token_(token),
      world_size_(world_size),
      stop_fd_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_fd_ < 0) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  try {
    thread_ = startHelper("commprof-clock", [this] { loop(); });
  } catch (...) {
    ::close(stop_fd_);
    throw;
  }
}

ClockResponder::~ClockResponder() {
  const uint64_t one = 1;
  // An eventfd at 0 takes a write of 8 bytes without fail.
  [[maybe_unused]] const ssize_t n = write(stop_fd_, &one, sizeof(one));
  thread_->join();
  ::close(stop_fd_);
}

void ClockResponder::abandon() noexcept {
  socket_.close();
  ::close(stop_fd_);
}

void ClockResponder::loop() noexcept {
  pollfd watched[2] = {{socket_.fd(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  for (;;) {
    const int ready = poll(watched, 2, -1);
    if (ready < 0 && errno != EINTR) {
      return; // no memory for a poll: offsets are then not known
    }
    if (ready > 0 && watched[1].revents != 0) {
      return;
    }
    if (ready > 0) {
      answerAll();
    }
  }
}

void ClockResponder::answerAll() noexcept {
  for (;;) {
    ClockMessage message;
    sockaddr_storage from;
    socklen_t length = sizeof(from);
    auto* sender = reinterpret_cast<sockaddr*>(&from);
    const ssize_t n = recvfrom(
        socket_.fd(),
        &message,
        sizeof(message),
        MSG_DONTWAIT | MSG_TRUNC,
        sender,
        &length);
    message.received_ns = nowNs();
    if (n < 0) {
      return; // no more, or the error of an answer that found nobody
    }
    if (n != sizeof(message) || message.magic != ClockMessage::kAsks ||
        message.token != token_ || message.rank >= world_size_) {
      continue;
    }
    message.magic = ClockMessage::kAnswers;
    message.answered_ns = nowNs();
    // Lost answers are asked for again.
    sendto(
        socket_.fd(), &message, sizeof(message), MSG_DONTWAIT, sender, length);
  }
}

} // namespace commprof
