// Exchanges arrivals between this host's board (arrivals/arrival_board.h) and
// the boards of other hosts. Each host has one carrier, in the process that
// made the board. The carriers form a tree (arrival_tree.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "always_on/arrivals/arrival_board.h"
#include "always_on/hosts/arrival_tree.h"
#include "base/ip_address.h"
#include "clock/clock_track.h"
#include "clock/udp_socket.h"

namespace commprof {

// Address of another host's carrier.
struct ArrivalPeer {
  uint32_t host = 0; // index of the other host, lower than this host's
  std::string address; // numeric
  uint16_t port = 0;
  uint64_t token = 0; // token that the other host's carrier accepts
};

struct ArrivalCarrierOptions {
  std::string address; // numeric address to listen on, at any free port
  uint64_t token = 0; // datagrams without this token are ignored
  uint32_t host = 0; // index of this host, from 1
};

// A thread that receives datagrams. It sends new arrivals every kPeriodNs, and
// kHurryNs after a datagram with new arrivals. A datagram that the network does
// not accept immediately is counted and dropped. This host's own arrivals are
// sent only once its clock has been compared with rank 0's.
//
// The parent is the first peer that answers. If no peer answers, this host is
// the root of its tree.
class ArrivalCarrier {
 public:
  static constexpr uint64_t kPeriodNs = 100'000'000;
  static constexpr uint64_t kHurryNs = 25'000'000;
  // kAliveNs: time between two signs of life to the parent and the children. A
  // parent that is silent for kSilentNs is replaced by the next peer. A child
  // that is silent for kForgetNs is forgotten.
  static constexpr uint64_t kAliveNs = 500'000'000;
  static constexpr uint64_t kSilentNs = 2'000'000'000;
  static constexpr uint64_t kForgetNs = 5'000'000'000;
  // Peers before the parent in the list are better parents. They are asked
  // every kReturnNs. A host stays with a new parent for at least kStayNs before
  // it returns to a better parent.
  static constexpr uint64_t kReturnNs = 2'000'000'000;
  static constexpr uint64_t kStayNs = 5'000'000'000;
  static constexpr uint32_t kMaxHosts = 1 << 16;
  static constexpr size_t kMaxChildren = 64;

  // `clock` must outlive the carrier. Throws std::system_error, or
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
  // Any thread: adds a possible parent. Add the best parent first. Throws
  // std::invalid_argument.
  void addPeer(const ArrivalPeer& peer);
  // Any thread: sends new arrivals now.
  void flush() noexcept;
  // Any thread: returns what was sent so far. `flows` is the number of hosts to
  // which this host sends.
  struct Traffic {
    uint64_t datagrams = 0;
    uint64_t bytes = 0;
    uint32_t flows = 0;
  };
  Traffic traffic() const;
  // For a forked child, in which the carrier's thread does not exist: closes
  // the descriptors and releases the board. The object must then be leaked.
  void abandon() noexcept;

 private:
  struct Peer {
    uint32_t host;
    IpAddress address;
    uint64_t token;
  };
  struct Child {
    IpAddress address;
    uint64_t token;
    uint64_t heard_ns;
    // Hosts in the child's subtree; 0: the sender has another parent and only
    // asks whether this host is alive.
    uint32_t hosts;
  };
  void loop() noexcept;
  void receiveAll() noexcept;
  void takeLocked(const char* data, size_t size, const IpAddress& from);
  void takeChildLocked(
      const ArrivalHeader& header,
      const IpAddress& from,
      uint64_t now_ns);
  void takeParentLocked(const ArrivalHeader& header, uint64_t now_ns);
  void beParentedLocked(size_t peer, uint64_t now_ns);
  void followLocked(uint64_t now_ns);
  void sendRoundLocked(uint64_t now_ns);
  void askBetterLocked(uint64_t now_ns);
  void sendLocked(const ArrivalPacker& packer, const IpAddress& address);
  ArrivalHeader headerFor(uint64_t token, bool goes_down) const noexcept;
  uint32_t subtreeHosts() const noexcept;
  bool isRoot() const noexcept {
    return parent_ == peers_.size();
  }
  void wake() noexcept;

  const ArrivalCarrierOptions options_;
  std::shared_ptr<ArrivalBoard> board_;
  const ClockTrack& clock_;
  UdpSocket socket_;
  int wake_fd_; // readable when the thread must wake up
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_others_{false}; // true if there are hosts to send to

  mutable std::mutex mutex_; // guards all fields below except the thread
  ArrivalTree tree_;
  std::vector<Peer> peers_; // possible parents, the best first
  // Index of the parent in peers_; peers_.size() if this host is the root.
  size_t parent_ = 0;
  uint64_t parent_since_ns_ = 0;
  uint64_t parent_heard_ns_ = 0;
  uint64_t asked_ns_ = 0; // when better peers were last asked
  uint64_t alive_ns_ = 0; // time of the last sign of life
  uint32_t tree_hosts_ = 0; // hosts in the whole tree, as the root reports
  std::map<uint32_t, Child> children_; // keyed by the children's host indices
  uint64_t unsent_ = 0;
  Traffic traffic_;

  std::unique_ptr<std::thread> thread_;
};

// The board and the carrier of this process. Any thread may call. A forked
// child has neither.
class HostCarrier {
 public:
  // One per process, never destroyed.
  static HostCarrier& instance();

  // Makes a board. Discards the earlier board and its carrier. Throws like
  // ArrivalBoard::create().
  std::shared_ptr<ArrivalBoard> makeBoard(
      uint64_t token,
      uint32_t local_ranks = 8);
  // Starts a carrier for the board and returns the carrier's port. The carrier
  // runs until stop() or the end of the process, because ranks that finish
  // later need it. Throws like the constructor of ArrivalCarrier;
  // std::logic_error if there is no board.
  uint16_t carry(const ArrivalCarrierOptions& options);
  // Throws like ArrivalCarrier::addPeer(); std::logic_error if there is no
  // carrier.
  void addPeer(const ArrivalPeer& peer);
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
