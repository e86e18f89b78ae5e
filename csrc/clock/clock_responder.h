// Rank 0's side of the clock comparison: answers what its clock says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "clock/udp_socket.h"

namespace commprof {

// A thread that sleeps in poll() but for a few microseconds per question. It
// answers questions of this job's ranks and is silent to everything else. It
// waits for nobody and keeps nothing about those who ask.
class ClockResponder {
 public:
  // Listens on a numeric address, any free port. Throws std::system_error or
  // std::invalid_argument.
  ClockResponder(
      const std::string& address,
      uint64_t token,
      uint32_t world_size);
  ~ClockResponder();
  ClockResponder(const ClockResponder&) = delete;
  ClockResponder& operator=(const ClockResponder&) = delete;

  uint16_t port() const noexcept {
    return socket_.port();
  }
  uint64_t token() const noexcept {
    return token_;
  }
  // In a forked child, where the thread does not exist: closes the sockets.
  // The object must then be leaked.
  void abandon() noexcept;

 private:
  void loop() noexcept;
  void answerAll() noexcept;

  UdpSocket socket_;
  const uint64_t token_;
  const uint32_t world_size_;
  int stop_fd_; // readable once the thread must end
  std::unique_ptr<std::thread> thread_;
};

} // namespace commprof
