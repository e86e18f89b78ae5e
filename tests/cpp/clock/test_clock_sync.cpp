#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "check.h"
#include "clock/clock_sync.h"
#include "core/recorder.h"
#include "open_files.h"
#include "trace_file.h"

using namespace commprof;

// In a forked child, the thread sanitizer reports the parent's threads as
// leaks.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_options() {
  return "report_thread_leaks=0";
}

namespace {

constexpr uint64_t kToken = 0x1234567890abcdef;
constexpr const char* kLoopback = "127.0.0.1";

ClockFollowerOptions options(uint16_t port, uint32_t interval_ms = 20) {
  return {kLoopback, port, kToken, /*rank=*/1, interval_ms, /*pings=*/16};
}

void sleepMs(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

std::vector<Record> recorded(const std::function<void()>& body) {
  const trace_file::Directory directory;
  RecorderOptions recorder_options;
  recorder_options.trace_path = directory / "rank_1.trace";
  recorder_options.metadata_json = "{}";
  recorder_options.session = 1;
  Recorder::instance().start(recorder_options);
  body();
  Recorder::instance().stop();
  return trace_file::read(recorder_options.trace_path).records;
}

ClockMessage answer(
    uint64_t asked,
    uint64_t received,
    uint64_t answered,
    uint32_t magic = ClockMessage::kAnswers) {
  return {magic, 1, kToken, 1, asked, received, answered};
}

void theOffsetIsTheMiddleOfThePossibleRange() {
  // The question and the answer together took 200 ns, so the offset is 5000 ns
  // with an error of 100 ns.
  const ClockSample ahead = sampleOf(answer(1000, 6100, 6150), 1250);
  CHECK_EQ(ahead.offset_ns, 5000);
  CHECK_EQ(ahead.error_ns, 101u);
  CHECK_EQ(ahead.round_trip_ns, 200u);
  CHECK_EQ(ahead.at_ns, 1125u);
  const ClockSample behind = sampleOf(answer(6000, 1010, 1010), 6030);
  CHECK_EQ(behind.offset_ns, -5005);
  CHECK_EQ(behind.error_ns, 16u);
  // The clocks differ so much that a signed sum of two differences would
  // overflow.
  const uint64_t far_ns = uint64_t(1) << 63;
  CHECK_EQ(
      sampleOf(answer(far_ns, 100, 100), far_ns).offset_ns,
      -int64_t(far_ns - 1) + 99);
  CHECK_EQ(sampleOf(answer(1000, 6100, 6050), 1250).round_trip_ns, 0u);
  CHECK_EQ(sampleOf(answer(1000, 6100, 6400), 1250).round_trip_ns, 0u);
  CHECK_EQ(sampleOf(answer(1000, 6100, 6150), 900).round_trip_ns, 0u);
}

void theOffsetWithinOneProcessIsZero() {
  ClockSync& sync = ClockSync::instance();
  const uint64_t begin_ns = nowNs();
  const auto records = recorded([&] {
    const ClockServer server = sync.serve(kLoopback, kToken, 2);
    CHECK_EQ(server.token, kToken);
    CHECK_EQ(sync.serve(kLoopback, kToken + 1, 2).port, server.port);
    CHECK_EQ(sync.serve(kLoopback, kToken + 1, 2).token, kToken);
    sync.follow(options(server.port));
    sync.follow(options(server.port));
    sleepMs(300);
    Recorder::instance().setEnabled(false);
    sync.unfollow();
  });
  sync.stop();
  CHECK(records.size() >= 3);
  for (const Record& record : records) {
    CHECK(record.kind == Kind::kClock);
    CHECK(uint64_t(std::llabs(int64_t(record.value))) <= record.bytes_in);
    CHECK(record.bytes_out > 0 && record.bytes_in <= record.bytes_out / 2 + 1);
    CHECK(record.timestamp_ns > begin_ns && record.timestamp_ns < nowNs());
  }
}

bool isAnswered(const UdpSocket& socket, const void* data, size_t size) {
  CHECK_EQ(send(socket.fd(), data, size, 0), ssize_t(size));
  char buffer[128];
  for (int i = 0; i < 50; ++i) {
    if (recv(socket.fd(), buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
      return true;
    }
    sleepMs(1);
  }
  return false;
}

void invalidQuestionsGetNoAnswer() {
  const ClockResponder responder(kLoopback, kToken, 2);
  const UdpSocket socket = UdpSocket::connected(kLoopback, responder.port());
  ClockMessage good = answer(nowNs(), 0, 0, ClockMessage::kAsks);
  ClockMessage wrong_token = good;
  wrong_token.token ^= 1;
  ClockMessage no_such_rank = good;
  no_such_rank.rank = 2;
  ClockMessage no_question = good;
  no_question.magic = ClockMessage::kAnswers;
  const ClockMessage two_questions[2] = {good, good};
  CHECK(!isAnswered(socket, &wrong_token, sizeof(wrong_token)));
  CHECK(!isAnswered(socket, &no_such_rank, sizeof(no_such_rank)));
  CHECK(!isAnswered(socket, &no_question, sizeof(no_question)));
  CHECK(!isAnswered(socket, &good, sizeof(good) - 1));
  CHECK(!isAnswered(socket, &two_questions, sizeof(two_questions)));
  CHECK(!isAnswered(socket, "", 0));
  CHECK(isAnswered(socket, &good, sizeof(good)));
}

size_t recordsFrom(uint16_t port, const std::function<void()>& act) {
  uint64_t stop_ns = 0;
  const auto records = recorded([&] {
    ClockSync::instance().follow(options(port));
    act();
    const uint64_t begin_ns = nowNs();
    ClockSync::instance().unfollow();
    stop_ns = nowNs() - begin_ns;
  });
  CHECK(stop_ns < 2 * ClockFollower::kBurstNs + 200'000'000);
  return records.size();
}

void withoutRankZeroThereIsNoOffset() {
  uint16_t closed_port = 0;
  {
    const UdpSocket gone = UdpSocket::bound(kLoopback);
    closed_port = gone.port();
  }
  CHECK_EQ(recordsFrom(closed_port, [] { sleepMs(100); }), 0u);
  const UdpSocket silent_socket = UdpSocket::bound(kLoopback);
  CHECK_EQ(recordsFrom(silent_socket.port(), [] { sleepMs(100); }), 0u);
  CHECK_THROWS(std::invalid_argument, UdpSocket::bound("no.such.host"));
  CHECK_THROWS(std::exception, ClockResponder("192.0.2.1", kToken, 2));
}

void falseAnswersAreIgnored() {
  const UdpSocket fake_server = UdpSocket::bound(kLoopback);
  const auto sendFalseAnswers = [&] {
    for (int i = 0; i < 60; ++i) {
      ClockMessage message;
      sockaddr_storage from;
      socklen_t length = sizeof(from);
      auto* to = reinterpret_cast<sockaddr*>(&from);
      if (recvfrom(
              fake_server.fd(),
              &message,
              sizeof(message),
              MSG_DONTWAIT,
              to,
              &length) != sizeof(message)) {
        sleepMs(2);
        continue;
      }
      const ClockMessage asked = message;
      const auto reply = [&](auto change) {
        message = asked;
        message.magic = ClockMessage::kAnswers;
        message.received_ns = message.answered_ns = asked.asked_ns + 12345;
        change(message);
        sendto(fake_server.fd(), &message, sizeof(message), 0, to, length);
      };
      reply([](ClockMessage& m) { m.token += 1; });
      reply([](ClockMessage& m) { m.number -= 1; });
      reply([](ClockMessage& m) { m.rank = 0; });
      reply([](ClockMessage& m) { m.asked_ns -= 1; });
      reply([](ClockMessage& m) { m.magic = ClockMessage::kAsks; });
      reply([](ClockMessage& m) { m.answered_ns -= 10; });
    }
  };
  CHECK_EQ(recordsFrom(fake_server.port(), sendFalseAnswers), 0u);
}

void unfollowWorksAfterRankZeroHasEnded() {
  ClockSync& sync = ClockSync::instance();
  auto responder = std::make_unique<ClockResponder>(kLoopback, kToken, 2);
  const auto records = recorded([&] {
    sync.follow(options(responder->port()));
    sleepMs(200);
    responder.reset();
    sleepMs(200);
    sync.unfollow();
  });
  CHECK(records.size() >= 1);
}

void aForkedChildInheritsNoClockSockets() {
  ClockSync& sync = ClockSync::instance();
  const size_t open_before = openFiles();
  const ClockServer server = sync.serve(kLoopback, kToken, 2);
  sync.follow(options(server.port));
  for (int i = 0; i < 5; ++i) {
    sleepMs(5);
    const pid_t pid = fork();
    if (pid == 0) {
      check::failed = 0;
      CHECK_EQ(openFiles(), open_before);
      sync.unfollow();
      sync.stop();
      _exit(check::failed == 0 ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
  }
  sync.stop();
  CHECK_EQ(openFiles(), open_before);
}

void clockThreadsBlockSignals() {
  ClockSync& sync = ClockSync::instance();
  sync.follow(options(sync.serve(kLoopback, kToken, 2).port));
  // The new threads need some time to set their names.
  sleepMs(20);
  int threads = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "status");
    const std::string status{std::istreambuf_iterator<char>(file), {}};
    if (status.find("commprof-clock") != std::string::npos) {
      ++threads;
      const auto at = status.find("SigBlk:");
      const auto mask = std::strtoull(status.c_str() + at + 7, nullptr, 16);
      for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM}) {
        CHECK((mask >> (signal - 1)) & 1);
      }
    }
  }
  CHECK_EQ(threads, 2);
  sync.stop();
}

} // namespace

int main() {
  theOffsetIsTheMiddleOfThePossibleRange();
  theOffsetWithinOneProcessIsZero();
  invalidQuestionsGetNoAnswer();
  withoutRankZeroThereIsNoOffset();
  falseAnswersAreIgnored();
  unfollowWorksAfterRankZeroHasEnded();
  aForkedChildInheritsNoClockSockets();
  clockThreadsBlockSignals();
  return check::report();
}
