#include "clock/clock_sync.h"

#include <pthread.h>

#include <new>

#include "core/recorder.h"

namespace commprof {

ClockSync& ClockSync::instance() {
  static ClockSync* sync = new ClockSync();
  return *sync;
}

ClockSync::ClockSync() {
  // The handlers of a fork take locks in the reverse order of registration:
  // ours, held while the follower records a last time, then the recorder's.
  Recorder::instance();
  pthread_atfork(&beforeFork, &afterForkParent, &afterForkChild);
}

ClockServer ClockSync::serve(
    const std::string& address,
    uint64_t token,
    uint32_t world_size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!responder_) {
    responder_ = std::make_unique<ClockResponder>(address, token, world_size);
  }
  return {responder_->port(), responder_->token()};
}

void ClockSync::follow(const ClockFollowerOptions& options) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!follower_) {
    follower_ = std::make_unique<ClockFollower>(options, track_);
  }
}

void ClockSync::unfollow() {
  const std::lock_guard<std::mutex> lock(mutex_);
  follower_.reset();
}

void ClockSync::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  follower_.reset();
  responder_.reset();
}

void ClockSync::beforeFork() {
  instance().mutex_.lock();
}

void ClockSync::afterForkParent() {
  instance().mutex_.unlock();
}

// The threads do not exist here, and their locks may be held for ever.
void ClockSync::afterForkChild() {
  ClockSync& self = instance();
  if (ClockResponder* responder = self.responder_.release()) {
    responder->abandon();
  }
  if (ClockFollower* follower = self.follower_.release()) {
    follower->abandon();
  }
  new (&self.track_) ClockTrack();
  self.mutex_.unlock();
}

} // namespace commprof
