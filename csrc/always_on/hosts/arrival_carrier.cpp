#include "always_on/hosts/arrival_carrier.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

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

// Datagrams taken before a check whether to send or to end.
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
      receiver_(*board_),
      sender_(*board_) {
  try {
    hosts_heard_.resize(kMaxHosts);
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
  const Target target{IpAddress::parse(peer.address, peer.port), peer.token};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    peers_.push_back(target);
    sender_.resendLatest(nowNs());
  }
  has_peers_.store(true);
  wake();
}

void ArrivalCarrier::loop() noexcept {
  pollfd watched[2] = {{socket_.fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  uint64_t next_ns = nowNs() + kPeriodNs;
  while (!stopping_.load()) {
    const uint64_t now_ns = nowNs();
    const uint64_t left_ns = next_ns > now_ns ? next_ns - now_ns : 0;
    const int wait_ms =
        has_peers_.load() ? int((left_ns + 999'999) / 1'000'000) : -1;
    const int ready = poll(watched, 2, wait_ms);
    if (ready < 0 && errno != EINTR) {
      return; // no memory for a poll: the others' arrivals are then not known
    }
    if (ready > 0 && watched[1].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t n = read(wake_fd_, &count, sizeof(count));
    }
    if (ready > 0 && watched[0].revents != 0) {
      receiveAll();
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
    const ssize_t n =
        recv(socket_.fd(), data, sizeof(data), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0) {
      return;
    }
    try {
      take(data, size_t(n));
    } catch (const std::bad_alloc&) {
    }
  }
}

void ArrivalCarrier::take(const char* data, size_t size) {
  const std::optional<ClockLine> clock = clock_.line();
  if (!clock) {
    return;
  }
  const auto message = readArrivals(data, size, options_.token);
  if (!message || message->host >= kMaxHosts) {
    return;
  }
  if (receiver_.take(*message, *clock, nowNs()) > 0 &&
      !hosts_heard_[message->host]) {
    hosts_heard_[message->host] = true;
    heard_.fetch_add(1);
  }
}

void ArrivalCarrier::flush() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<ClockLine> clock = clock_.line();
  const uint64_t now_ns = nowNs();
  if (clock && !peers_.empty()) {
    try {
      sendLocked(*clock, now_ns);
    } catch (const std::bad_alloc&) {
    }
  }
  HostLinks links;
  links.clock_known = clock.has_value();
  links.clock_offset_ns = clock ? clock->offsetAt(now_ns) : 0;
  links.peers = uint32_t(peers_.size());
  links.heard = heard_.load();
  links.unsent = unsent_;
  board_->setLinks(links);
}

void ArrivalCarrier::sendLocked(const ClockLine& clock, uint64_t now_ns) {
  ArrivalPacker packer(options_.host);
  sender_.collect(clock, now_ns, packer);
  for (Datagram& datagram : packer.datagrams()) {
    for (const Target& peer : peers_) {
      setToken(datagram, peer.token);
      const ssize_t n = sendto(
          socket_.fd(),
          datagram.data(),
          datagram.size(),
          MSG_DONTWAIT,
          peer.address.get(),
          peer.address.length);
      unsent_ += n != ssize_t(datagram.size());
    }
  }
}

HostCarrier& HostCarrier::instance() {
  static HostCarrier* carrier = new HostCarrier();
  return *carrier;
}

HostCarrier::HostCarrier() {
  pthread_atfork(&beforeFork, &afterForkParent, &afterForkChild);
}

std::shared_ptr<ArrivalBoard> HostCarrier::makeBoard(uint64_t token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<ArrivalBoard> made = ArrivalBoard::create(token);
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

// The thread does not exist in the child; its lock may be held for ever.
void HostCarrier::afterForkChild() {
  HostCarrier& self = instance();
  if (ArrivalCarrier* carrier = self.carrier_.release()) {
    carrier->abandon();
  }
  self.board_.reset();
  self.mutex_.unlock();
}

} // namespace commprof
