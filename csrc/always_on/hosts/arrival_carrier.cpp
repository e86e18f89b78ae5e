#include "always_on/hosts/arrival_carrier.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/threads.h"
#include "clock/clock_sync.h"

namespace commprof {

namespace {

// Largest number of datagrams that the thread receives before it checks whether
// to send or to end.
constexpr int kInARow = 256;

int openEvent() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  return fd;
}

} // namespace

ArrivalCarrier::ArrivalCarrier(
    std::shared_ptr<ArrivalBoard> board,
    const ClockTrack& clock,
    const ArrivalCarrierOptions& options)
    : options_(options),
      board_(std::move(board)),
      clock_(clock),
      socket_(UdpSocket::bound(options.address)),
      wake_fd_(openEvent()),
      tree_(*board_) {
  try {
    thread_ = startHelper("commprof-hosts", [this] { loop(); });
  } catch (...) {
    ::close(wake_fd_);
    throw;
  }
}

ArrivalCarrier::~ArrivalCarrier() {
  stopping_.store(true);
  wake();
  thread_->join();
  ::close(wake_fd_);
}

void ArrivalCarrier::abandon() noexcept {
  socket_.close();
  ::close(wake_fd_);
  board_.reset();
}

void ArrivalCarrier::wake() noexcept {
  const uint64_t one = 1;
  // A write of 8 bytes to an eventfd with so low a count always succeeds.
  [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
}

void ArrivalCarrier::addPeer(const ArrivalPeer& peer) {
  const IpAddress address = IpAddress::parse(peer.address, peer.port);
  if (peer.host == 0 || peer.host >= options_.host) {
    throw std::invalid_argument(
        "a parent host must have a lower number than its child");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    peers_.push_back({peer.host, address, peer.token});
    if (peers_.size() == 1) {
      beParentedLocked(0, nowNs());
    }
  }
  has_others_.store(true);
  wake();
}

void ArrivalCarrier::loop() noexcept {
  pollfd watched[2] = {{socket_.fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  uint64_t next_ns = nowNs() + kPeriodNs;
  while (!stopping_.load()) {
    const uint64_t now_ns = nowNs();
    const uint64_t left_ns = next_ns > now_ns ? next_ns - now_ns : 0;
    const int wait_ms =
        has_others_.load() ? int((left_ns + 999'999) / 1'000'000) : -1;
    const int ready = poll(watched, 2, wait_ms);
    if (ready < 0 && errno != EINTR) {
      // There is no memory for poll(): arrivals of other hosts stay unknown.
      return;
    }
    if (ready > 0 && watched[1].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t n = read(wake_fd_, &count, sizeof(count));
    }
    if (ready > 0 && watched[0].revents != 0) {
      receiveAll();
      const std::lock_guard<std::mutex> lock(mutex_);
      if (tree_.hasNews()) {
        next_ns = std::min(next_ns, nowNs() + kHurryNs);
      }
    }
    if (nowNs() >= next_ns) {
      flush();
      next_ns = nowNs() + kPeriodNs;
    }
  }
}

void ArrivalCarrier::receiveAll() noexcept {
  char data[ArrivalPacker::kMaxBytes];
  for (int i = 0; i < kInARow; ++i) {
    IpAddress from;
    from.length = sizeof(from.address);
    const ssize_t n = recvfrom(
        socket_.fd(),
        data,
        sizeof(data),
        MSG_DONTWAIT | MSG_TRUNC,
        reinterpret_cast<sockaddr*>(&from.address),
        &from.length);
    if (n < 0) {
      return;
    }
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      takeLocked(data, size_t(n), from);
    } catch (const std::bad_alloc&) {
    }
  }
}

void ArrivalCarrier::takeLocked(
    const char* data,
    size_t size,
    const IpAddress& from) {
  const auto message = readArrivals(data, size, options_.token);
  const uint32_t host = message ? message->header.host : 0;
  if (host == 0 || host >= kMaxHosts || host == options_.host ||
      (host < options_.host) != message->header.goes_down) {
    return; // parents have lower numbers, so that no circle can form
  }
  const uint64_t now_ns = nowNs();
  if (message->header.goes_down) {
    takeParentLocked(message->header, now_ns);
  } else {
    takeChildLocked(message->header, from, now_ns);
    if (!children_.contains(host)) {
      return; // too many children: the sender will try another parent
    }
  }
  tree_.take(*message, now_ns);
}

void ArrivalCarrier::takeChildLocked(
    const ArrivalHeader& header,
    const IpAddress& from,
    uint64_t now_ns) {
  if (children_.size() >= kMaxChildren && !children_.contains(header.host)) {
    return;
  }
  children_[header.host] = {from, header.own_token, now_ns, header.hosts};
  has_others_.store(true);
}

void ArrivalCarrier::takeParentLocked(
    const ArrivalHeader& header,
    uint64_t now_ns) {
  for (size_t i = 0; i < peers_.size() && i <= parent_; ++i) {
    if (peers_[i].host != header.host) {
      continue;
    }
    if (i == parent_) {
      parent_heard_ns_ = now_ns;
      tree_hosts_ = header.hosts;
    } else if (now_ns > parent_since_ns_ + kStayNs) {
      beParentedLocked(i, now_ns);
    }
    return;
  }
}

void ArrivalCarrier::beParentedLocked(size_t peer, uint64_t now_ns) {
  parent_ = peer;
  parent_since_ns_ = parent_heard_ns_ = now_ns;
  tree_.changeParent();
}

void ArrivalCarrier::flush() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<ClockLine> clock = clock_.line();
  const uint64_t now_ns = nowNs();
  if (!peers_.empty() || !children_.empty()) {
    try {
      followLocked(now_ns);
      if (clock) {
        tree_.gather(*clock, now_ns);
      }
      tree_.advance(isRoot(), now_ns);
      sendRoundLocked(now_ns);
      tree_.publish(clock, now_ns);
    } catch (const std::bad_alloc&) {
    }
  }
  HostLinks links;
  links.clock_known = clock.has_value();
  links.clock_offset_ns = clock ? clock->offsetAt(now_ns) : 0;
  links.peers = uint32_t(children_.size()) + (isRoot() ? 0 : 1);
  const uint32_t hosts = isRoot() ? subtreeHosts() : tree_hosts_;
  links.heard = hosts > 0 ? hosts - 1 : 0;
  links.unsent = unsent_;
  links.skipped = tree_.skipped();
  board_->setLinks(links);
}

void ArrivalCarrier::followLocked(uint64_t now_ns) {
  std::erase_if(children_, [&](const auto& child) {
    return now_ns > child.second.heard_ns + kForgetNs;
  });
  if (!isRoot() && now_ns > parent_heard_ns_ + kSilentNs) {
    beParentedLocked(parent_ + 1, now_ns);
  }
}

uint32_t ArrivalCarrier::subtreeHosts() const noexcept {
  uint32_t hosts = 1;
  for (const auto& [host, child] : children_) {
    hosts += child.hosts;
  }
  return hosts;
}

ArrivalHeader ArrivalCarrier::headerFor(uint64_t token, bool goes_down)
    const noexcept {
  const uint32_t hosts = goes_down && !isRoot() ? tree_hosts_ : subtreeHosts();
  return {token, options_.token, options_.host, hosts, goes_down};
}

void ArrivalCarrier::sendRoundLocked(uint64_t now_ns) {
  const bool is_sign_due = now_ns >= alive_ns_ + kAliveNs;
  alive_ns_ = is_sign_due ? now_ns : alive_ns_;
  if (!isRoot()) {
    const Peer& parent = peers_[parent_];
    ArrivalPacker packer(headerFor(parent.token, false));
    tree_.packUp(packer);
    if (is_sign_due) {
      packer.addEmpty();
    }
    sendLocked(packer, parent.address);
  }
  for (const auto& [host, child] : children_) {
    ArrivalPacker packer(headerFor(child.token, true));
    tree_.packDown(host, packer);
    if (is_sign_due) {
      packer.addEmpty();
    }
    sendLocked(packer, child.address);
  }
  tree_.endOfRound();
  askBetterLocked(now_ns);
}

// Sends an empty message with a subtree of 0 hosts to each peer that is better
// than the parent. A live peer then sends signs of life to this host.
void ArrivalCarrier::askBetterLocked(uint64_t now_ns) {
  if (parent_ == 0 || now_ns < asked_ns_ + kReturnNs) {
    return;
  }
  asked_ns_ = now_ns;
  for (size_t i = 0; i < parent_; ++i) {
    ArrivalHeader header = headerFor(peers_[i].token, false);
    header.hosts = 0;
    ArrivalPacker packer(header);
    packer.addEmpty();
    sendLocked(packer, peers_[i].address);
  }
}

void ArrivalCarrier::sendLocked(
    const ArrivalPacker& packer,
    const IpAddress& address) {
  for (const Datagram& datagram : packer.datagrams()) {
    const ssize_t n = sendto(
        socket_.fd(),
        datagram.data(),
        datagram.size(),
        MSG_DONTWAIT,
        address.get(),
        address.length);
    unsent_ += n != ssize_t(datagram.size());
    ++traffic_.datagrams;
    traffic_.bytes += datagram.size();
  }
}

ArrivalCarrier::Traffic ArrivalCarrier::traffic() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Traffic found = traffic_;
  found.flows = uint32_t(children_.size()) + (isRoot() ? 0 : 1);
  return found;
}

HostCarrier& HostCarrier::instance() {
  static HostCarrier* carrier = new HostCarrier();
  return *carrier;
}

HostCarrier::HostCarrier() {
  pthread_atfork(&beforeFork, &afterForkParent, &afterForkChild);
}

std::shared_ptr<ArrivalBoard> HostCarrier::makeBoard(
    uint64_t token,
    uint32_t local_ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<ArrivalBoard> made = ArrivalBoard::create(token, local_ranks);
  carrier_.reset();
  board_ = made;
  return made;
}

uint16_t HostCarrier::carry(const ArrivalCarrierOptions& options) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!board_) {
    throw std::logic_error("there is no board: call arrivals_create first");
  }
  carrier_ = std::make_unique<ArrivalCarrier>(
      board_, ClockSync::instance().track(), options);
  return carrier_->port();
}

void HostCarrier::addPeer(const ArrivalPeer& peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!carrier_) {
    throw std::logic_error("there is no carrier: call arrivals_carry first");
  }
  carrier_->addPeer(peer);
}

void HostCarrier::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (carrier_) {
    carrier_->flush();
  }
}

void HostCarrier::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  carrier_.reset();
  board_.reset();
}

void HostCarrier::beforeFork() {
  instance().mutex_.lock();
}

void HostCarrier::afterForkParent() {
  instance().mutex_.unlock();
}

// The carrier's thread does not exist in the child. A lock that the thread held
// stays held, so the carrier is not destroyed.
void HostCarrier::afterForkChild() {
  HostCarrier& self = instance();
  if (ArrivalCarrier* carrier = self.carrier_.release()) {
    carrier->abandon();
  }
  self.board_.reset();
  self.mutex_.unlock();
}

} // namespace commprof
