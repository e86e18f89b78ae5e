// Tells the other hosts of this host's arrivals, and writes theirs down here.
//
// One process of a host does it for all: the one that made the host's board.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "always_on/arrivals/arrival_board.h"
#include "always_on/hosts/arrival_relay.h"
#include "clock/clock_track.h"
#include "clock/udp_socket.h"

namespace commprof {

// Where another host's carrier listens.
struct ArrivalPeer {
  std::string address; // numeric
  uint16_t port = 0;
  uint64_t token = 0; // what it listens to
};

struct ArrivalCarrierOptions {
  std::string address; // to listen on, numeric; any free port
  uint64_t token = 0; // strangers do not know it
  uint32_t host = 0; // number of this host, from 1
};

// A thread that sleeps in poll() but for what comes and for kPeriodNs, at which
// it sends what is new; without peers it only sleeps. It waits for nobody: what
// the network does not take is counted and left out. Without a clock nothing is
// sent and nothing is taken.
class ArrivalCarrier {
 public:
  static constexpr uint64_t kPeriodNs = 100'000'000;
  static constexpr uint32_t kMaxHosts = 1 << 16;

  // `clock` must outlive it. Throws std::system_error, or
  // std::invalid_argument.
  ArrivalCarrier(
      std::shared_ptr<ArrivalBoard> board,
      const ClockTrack& clock,
      const ArrivalCarrierOptions& options);
  ~ArrivalCarrier();
  ArrivalCarrier(const ArrivalCarrier&) = delete;
  ArrivalCarrier& operator=(const ArrivalCarrier&) = delete;

  uint16_t port() const noexcept {
    return socket_.port();
  }
  // Any thread. Throws std::invalid_argument.
  void addPeer(const ArrivalPeer& peer);
  // Any thread: sends now what is new.
  void flush() noexcept;
  // In a forked child, where the thread does not exist: lets go of the sockets
  // and the board. The object must then be leaked.
  void abandon() noexcept;

 private:
  struct Target {
    IpAddress address;
    uint64_t token;
  };
  void loop() noexcept;
  void receiveAll() noexcept;
  void take(const char* data, size_t size);
  void sendLocked(const ClockLine& clock, uint64_t now_ns);
  void wake() noexcept;

  const ArrivalCarrierOptions options_;
  std::shared_ptr<ArrivalBoard> board_;
  const ClockTrack& clock_;
  UdpSocket socket_;
  int wake_fd_; // readable once there is something else to do than to sleep
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_peers_{false};
  std::atomic<uint32_t> heard_{0}; // hosts

  ArrivalReceiver receiver_; // the thread's own
  std::vector<bool> hosts_heard_; // the thread's own; by number

  std::mutex mutex_; // everything below
  ArrivalSender sender_;
  std::vector<Target> peers_;
  uint64_t unsent_ = 0;

  std::unique_ptr<std::thread> thread_;
};

// Any thread may call; a forked child begins with neither.
class HostCarrier {
 public:
  // One per process, never destroyed.
  static HostCarrier& instance();

  // A new board, in the place of that of an earlier process group. Throws as
  // ArrivalBoard::create().
  std::shared_ptr<ArrivalBoard> makeBoard(uint64_t token);
  // Carries between it and other hosts from now on until the process ends or
  // stop(): ranks that finish later still need it. Returns its port. Throws as
  // ArrivalCarrier does, and std::logic_error without a board.
  uint16_t carry(const ArrivalCarrierOptions& options);
  // Throws as ArrivalCarrier::addPeer(), and std::logic_error without one.
  void addPeer(const ArrivalPeer& peer);
  // Sends what is new now, if there is a carrier.
  void flush();
  void stop();

 private:
  HostCarrier();
  static void beforeFork();
  static void afterForkParent();
  static void afterForkChild();

  std::mutex mutex_;
  std::shared_ptr<ArrivalBoard> board_;
  std::unique_ptr<ArrivalCarrier> carrier_;
};

} // namespace commprof
