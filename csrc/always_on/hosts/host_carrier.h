// This process's board and carrier, if it is the one of its host that has them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "always_on/arrivals/arrival_board.h"
#include "always_on/hosts/arrival_carrier.h"

namespace commprof {

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
