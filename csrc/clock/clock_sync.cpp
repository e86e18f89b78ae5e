#include "clock/clock_sync.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <system_error>

#include "base/clock.h"
#include "base/threads.h"
#include "clock/clock_track.h"
#include "core/recorder.h"

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
  // A write of 8 bytes to an eventfd at 0 always succeeds.
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
      return; // there is no memory for poll(): offsets stay unknown
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
      // There is no further question, or recvfrom() reports the error of an
      // answer that was not delivered.
      return;
    }
    if (n != sizeof(message) || message.magic != ClockMessage::kAsks ||
        message.token != token_ || message.rank >= world_size_) {
      continue;
    }
    message.magic = ClockMessage::kAnswers;
    message.answered_ns = nowNs();
    // If the answer is lost, the follower asks again.
    sendto(
        socket_.fd(), &message, sizeof(message), MSG_DONTWAIT, sender, length);
  }
}

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
// An answer that takes longer counts as lost.
constexpr uint64_t kAnswerNs = 100'000'000;
// A burst pauses for kPauseNs after every kWithoutPause questions. So some
// questions are sent while the network carries no gradients.
constexpr uint32_t kWithoutPause = 4;
constexpr uint64_t kPauseNs = 4'000'000;

void record(const ClockSample& sample) noexcept {
  Recorder& recorder = Recorder::instance();
  if (!recorder.started()) { // a paused recorder takes clock records too
    return;
  }
  Record record;
  record.kind = Kind::kClock;
  record.timestamp_ns = sample.at_ns;
  record.thread = Recorder::threadId();
  record.*field::kClockOffsetNs = uint64_t(sample.offset_ns);
  record.*field::kClockErrorNs = sample.error_ns;
  record.*field::kClockRoundTripNs = sample.round_trip_ns;
  recorder.push(record);
}

} // namespace

ClockFollower::ClockFollower(
    const ClockFollowerOptions& options,
    ClockTrack& track)
    : options_(options),
      track_(track),
      socket_(UdpSocket::connected(options.address, options.port)),
      thread_(startHelper("commprof-clock", [this] { loop(); })) {}

ClockFollower::~ClockFollower() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_->join();
}

void ClockFollower::abandon() noexcept {
  socket_.close();
}

void ClockFollower::loop() noexcept {
  const uint64_t longest_ns = uint64_t(options_.interval_ms) * 1'000'000;
  uint64_t next_ns = std::min(kSecondNs, longest_ns);
  bool known = burst(/*last=*/false);
  while (sleepFor(known ? next_ns : std::min(kSecondNs, longest_ns))) {
    if (known) {
      next_ns = std::min(2 * next_ns, longest_ns);
    }
    known = burst(/*last=*/false);
  }
  if (known) {
    burst(/*last=*/true);
  }
}

bool ClockFollower::sleepFor(uint64_t duration_ns) noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::nanoseconds(duration_ns), [this] {
    return stopping_;
  });
}

// The last burst has no pauses, because the destructor waits for it.
bool ClockFollower::burst(bool last) noexcept {
  const uint64_t give_up_ns = nowNs() + kBurstNs;
  ClockSample best;
  for (uint32_t i = 0; i < options_.pings && nowNs() < give_up_ns; ++i) {
    if (!last && i > 0 && i % kWithoutPause == 0 && !sleepFor(kPauseNs)) {
      break;
    }
    const ClockSample sample = ask(give_up_ns);
    if (sample.round_trip_ns != 0 &&
        (best.round_trip_ns == 0 ||
         sample.round_trip_ns < best.round_trip_ns)) {
      best = sample;
    }
  }
  if (best.round_trip_ns == 0) {
    return false;
  }
  track_.add(best);
  record(best);
  return true;
}

// Asks one question; returns no sample if no answer comes in time.
ClockSample ClockFollower::ask(uint64_t give_up_ns) noexcept {
  ClockMessage message;
  message.magic = ClockMessage::kAsks;
  message.rank = options_.rank;
  message.token = options_.token;
  message.number = ++number_;
  message.asked_ns = nowNs();
  const uint64_t asked_ns = message.asked_ns;
  const uint64_t until_ns = std::min(asked_ns + kAnswerNs, give_up_ns);
  // An error of send() may belong to an earlier question, so it is ignored.
  send(socket_.fd(), &message, sizeof(message), MSG_DONTWAIT);
  for (;;) {
    const uint64_t now_ns = nowNs();
    if (now_ns >= until_ns) {
      return {};
    }
    pollfd watched{socket_.fd(), POLLIN, 0};
    const int wait_ms = int((until_ns - now_ns) / 1'000'000) + 1;
    if (poll(&watched, 1, wait_ms) <= 0) {
      continue;
    }
    const ssize_t n =
        recv(socket_.fd(), &message, sizeof(message), MSG_DONTWAIT | MSG_TRUNC);
    const uint64_t came_ns = nowNs();
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return {}; // no process listens at rank 0's address
    }
    if (n == sizeof(message) && isAnswer(message) &&
        message.asked_ns == asked_ns) {
      return sampleOf(message, came_ns);
    }
  }
}

bool ClockFollower::isAnswer(const ClockMessage& message) const noexcept {
  return message.magic == ClockMessage::kAnswers &&
      message.token == options_.token && message.rank == options_.rank &&
      message.number == number_;
}

ClockSync& ClockSync::instance() {
  static ClockSync* sync = new ClockSync();
  return *sync;
}

ClockSync::ClockSync() {
  // Fork handlers take locks in the reverse order of their registration. The
  // recorder's handler is registered first, so that mutex_ is taken before the
  // recorder's lock. The follower makes its last record while mutex_ is held.
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

// The threads do not exist in the child. A lock that a thread held stays held,
// so the objects are not destroyed.
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
