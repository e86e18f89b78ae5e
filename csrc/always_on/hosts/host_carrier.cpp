#include "always_on/hosts/host_carrier.h"

#include <pthread.h>

#include <stdexcept>

#include "clock/clock_sync.h"

namespace commprof {

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

// The thread does not exist here, and its lock may be held for ever.
void HostCarrier::afterForkChild() {
  HostCarrier& self = instance();
  if (ArrivalCarrier* carrier = self.carrier_.release()) {
    carrier->abandon();
  }
  self.board_.reset();
  self.mutex_.unlock();
}

} // namespace commprof
