// Sends this host's arrivals to the other hosts, and puts theirs on its board.
//
// One process of each host does this for all: the one that made the board.
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

// Address of another host's carrier.
struct ArrivalPeer {
  std::string address; // numeric
  uint16_t port = 0;
  uint64_t token = 0; // that it accepts
};

struct ArrivalCarrierOptions {
  std::string address; // to listen on, numeric; any free port
  uint64_t token = 0; // datagrams without it are ignored
  uint32_t host = 0; // number of this host, from 1
};

// A thread that sleeps in poll(), takes datagrams that come, and every
// kPeriodNs sends what is new; without peers it sends nothing. Datagrams that
// the network does not accept at once are counted and dropped. Without a clock
// nothing is sent and nothing is taken.
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
  // For a forked child, where the thread does not exist: closes the descriptors
  // and releases the board. The object must then be leaked.
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
  int wake_fd_; // readable when the thread must wake up
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_peers_{false};
  std::atomic<uint32_t> heard_{0}; // hosts whose arrivals were taken

  ArrivalReceiver receiver_; // used only by the thread
  std::vector<bool> hosts_heard_; // the same; by number of the host

  std::mutex mutex_; // guards the next three
  ArrivalSender sender_;
  std::vector<Target> peers_;
  uint64_t unsent_ = 0;

  std::unique_ptr<std::thread> thread_;
};

// The process's board and carrier. Any thread may call; a forked child begins
// with neither.
class HostCarrier {
 public:
  // One per process, never destroyed.
  static HostCarrier& instance();

  // Makes a board, which replaces that of an earlier process group. Throws like
  // ArrivalBoard::create().
  std::shared_ptr<ArrivalBoard> makeBoard(uint64_t token);
  // Starts a carrier for the board, which runs until the process ends or
  // stop(): ranks that finish later still need it. Returns its port. Throws
  // like ArrivalCarrier, and std::logic_error without a board.
  uint16_t carry(const ArrivalCarrierOptions& options);
  // Throws like ArrivalCarrier::addPeer(); std::logic_error without a carrier.
  void addPeer(const ArrivalPeer& peer);
  // Sends now what is new, if there is a carrier.
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
