#include "always_on/hosts/arrival_carrier.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "arrival_hosts.h"
#include "check.h"
#include "clock/clock_sync.h"
#include "open_files.h"

using namespace commprof;
using namespace arrival_hosts;
using State = ArrivalBoard::State;

// In a forked child, the thread sanitizer reports the parent's threads as
// leaks.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_options() {
  return "report_thread_leaks=0";
}

namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr uint64_t kToken = 0x1234567890abcdef;
constexpr uint64_t kMs = 1'000'000;

void sleepMs(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

bool becomesTrue(const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) {
    sleepMs(10);
  }
  return condition();
}

struct CarriedHost {
  Host host;
  ArrivalCarrier carrier;

  CarriedHost(int64_t ahead_ns, uint32_t first_rank, uint32_t host_number)
      : host(ahead_ns, first_rank),
        carrier(
            host.board,
            host.clock,
            {kLoopback, kToken + host_number, host_number}) {}
  ArrivalPeer peer(uint32_t host_number) const {
    return {host_number, kLoopback, carrier.port(), kToken + host_number};
  }
};

struct Pair {
  CarriedHost one{0, 0, 1};
  CarriedHost two{300 * int64_t(kMs), 2, 2};

  void connect() {
    two.carrier.addPeer(one.peer(1));
  }
};

uint64_t trueNs(uint64_t begin_ns, uint32_t seq, uint32_t rank) {
  return begin_ns + seq * kMs + (rank == seq % kRanks ? 500'000 : rank * 10);
}

uint32_t runHost(Host& host, uint64_t begin_ns, uint32_t count) {
  host.join();
  for (uint32_t seq = 0; seq < count; ++seq) {
    for (uint32_t rank = host.first_rank; rank < host.first_rank + 2; ++rank) {
      host.post(rank, seq, trueNs(begin_ns, seq, rank));
    }
    sleepMs(1);
  }
  uint32_t correct = 0;
  for (uint32_t seq = 0; seq < count; ++seq) {
    const uint64_t near_ns = trueNs(begin_ns, seq, host.first_rank);
    ArrivalBoard::Last last;
    becomesTrue([&] { return host.last(seq, near_ns, last) == State::kKnown; });
    const uint32_t rank = seq % kRanks;
    correct += last.rank == 100 + rank && last.clock_error_ns >= 100 &&
        last.at_ns == host.ownNs(trueNs(begin_ns, seq, rank));
  }
  return correct;
}

void arrivalsCrossHostsAndClocks() {
  Pair pair;
  pair.one.host.compare();
  pair.two.host.compare();
  const uint64_t begin_ns = nowNs();
  const uint32_t count = 300;
  uint32_t correct_on_two = 0;
  std::thread host_two(
      [&] { correct_on_two = runHost(pair.two.host, begin_ns, count); });
  std::thread connector([&] {
    sleepMs(20);
    pair.connect();
  });
  CHECK_EQ(runHost(pair.one.host, begin_ns, count), count);
  host_two.join();
  connector.join();
  CHECK_EQ(correct_on_two, count);
  pair.one.carrier.flush();
  HostLinks links;
  CHECK(becomesTrue([&] {
    links = pair.two.host.board->links();
    return links.heard == 1;
  }));
  CHECK_EQ(links.peers, 1u);
  CHECK_EQ(links.unsent, 0u);
  links = pair.one.host.board->links();
  CHECK(links.clock_known);
  CHECK_EQ(links.peers, 1u);
  CHECK_EQ(links.heard, 1u);
  CHECK_EQ(links.unsent, 0u);
  pair.two.carrier.flush();
  CHECK_EQ(pair.two.host.board->links().clock_offset_ns, -300 * int64_t(kMs));
}

void arrivalsAreUnknownUntilClocksAreCompared() {
  Pair pair;
  pair.connect();
  pair.one.host.compare();
  pair.one.host.join();
  pair.two.host.join();
  const uint64_t now_ns = nowNs();
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    (rank < 2 ? pair.one : pair.two).host.post(rank, 0, now_ns);
  }
  ArrivalBoard::Last last;
  for (int i = 0; i < 3; ++i) {
    pair.one.carrier.flush();
    pair.two.carrier.flush();
    sleepMs(20);
  }
  CHECK(pair.one.host.last(0, now_ns, last) == State::kMissing);
  CHECK(pair.two.host.last(0, now_ns, last) == State::kMissing);
  CHECK(!pair.two.host.board->links().clock_known);
  pair.two.host.compare();
  for (Host* host : {&pair.one.host, &pair.two.host}) {
    CHECK(becomesTrue(
        [&] { return host->last(0, now_ns, last) == State::kKnown; }));
  }
}

void anUnreachablePeerOnlyCountsAsUnsent() {
  CarriedHost local(0, 0, 3);
  local.host.compare();
  local.host.join();
  {
    const UdpSocket gone = UdpSocket::bound(kLoopback);
    local.carrier.addPeer({1, kLoopback, gone.port(), 1});
  }
  local.carrier.addPeer({2, "::1", 9, 1});
  CHECK_THROWS(
      std::invalid_argument, local.carrier.addPeer({1, "no.such.host", 9, 1}));
  CHECK_THROWS(
      std::invalid_argument, local.carrier.addPeer({3, kLoopback, 9, 1}));
  local.host.post(0, 0, nowNs());
  CHECK(becomesTrue([&] { return local.host.board->links().unsent >= 1; }));
  CHECK_EQ(local.host.board->links().heard, 0u);
}

// Each of hosts 1 to 4 has two of eight ranks. Hosts 2 and 3 send to host 1,
// and host 4 sends to host 3.
struct Four {
  std::vector<std::unique_ptr<CarriedHost>> hosts;
  static constexpr uint64_t kKey = 78;

  Four() {
    for (uint32_t number = 1; number <= 4; ++number) {
      hosts.push_back(
          std::make_unique<CarriedHost>(
              (number - 1) * 300 * int64_t(kMs), 2 * (number - 1), number));
      Host& host = hosts.back()->host;
      host.compare();
      for (uint32_t rank = host.first_rank; rank < host.first_rank + 2;
           ++rank) {
        host.board->join(
            {kKey, rank, 8, 100 + rank}, host.ranks.emplace_back());
      }
    }
    add(2, {1});
    add(3, {1, 2});
    add(4, {3, 1, 2});
  }
  void add(uint32_t host, const std::vector<uint32_t>& peers) {
    for (const uint32_t peer : peers) {
      hosts[host - 1]->carrier.addPeer(hosts[peer - 1]->peer(peer));
    }
  }
  void issue(
      uint32_t seq,
      uint32_t late,
      const std::vector<uint32_t>& numbers) {
    const uint64_t now_ns = nowNs();
    for (const uint32_t number : numbers) {
      Host& host = hosts[number - 1]->host;
      for (uint32_t rank = host.first_rank; rank < host.first_rank + 2;
           ++rank) {
        host.post(rank, seq, now_ns - (rank == late ? 0 : 1'000'000));
      }
    }
  }
  bool isKnown(uint32_t number, uint32_t seq, uint32_t late, State state) {
    ArrivalBoard::Last last;
    return becomesTrue([&] {
             return hosts[number - 1]->host.last(seq, nowNs(), last) == state;
           }) &&
        last.rank == 100 + late;
  }
};

void aHostWithoutItsParentSendsToTheNextOne() {
  Four job;
  job.issue(0, 6, {1, 2, 3, 4});
  for (uint32_t number = 1; number <= 4; ++number) {
    CHECK(job.isKnown(number, 0, 6, State::kKnown));
  }
  job.hosts[2].reset();
  CHECK(becomesTrue([&] {
    return job.hosts[0]->host.board->links().peers == 2 &&
        job.hosts[3]->host.board->links().heard == 2;
  }));
  job.issue(1, 7, {1, 2, 4});
  for (const uint32_t number : {1u, 2u, 4u}) {
    CHECK(job.isKnown(number, 1, 7, State::kPartial));
  }
}

void withoutTheRootTheNextHostTakesItsPlace() {
  Four job;
  job.issue(0, 3, {1, 2, 3, 4});
  CHECK(job.isKnown(4, 0, 3, State::kKnown));
  job.hosts[0].reset();
  CHECK(becomesTrue([&] {
    return job.hosts[3]->host.board->links().heard == 2 &&
        job.hosts[1]->host.board->links().heard == 2;
  }));
  job.issue(1, 7, {2, 3, 4});
  for (const uint32_t number : {2u, 3u, 4u}) {
    CHECK(job.isKnown(number, 1, 7, State::kPartial));
  }
}

void foreignDatagramsAreIgnored() {
  CarriedHost local(0, 0, 1);
  local.host.compare();
  local.host.join();
  const uint64_t now_ns = nowNs();
  local.host.post(0, 0, now_ns);
  local.host.post(1, 0, now_ns);
  const UdpSocket socket =
      UdpSocket::connected(kLoopback, local.carrier.port());
  const auto sendDatagram = [&](const Datagram& datagram) {
    CHECK_EQ(
        send(socket.fd(), datagram.data(), datagram.size(), 0),
        ssize_t(datagram.size()));
  };
  const auto arrival = [&](uint32_t host, uint64_t token) {
    ArrivalPacker packer({token, 1, host, 1, false});
    packer.add(kGroup, kRanks, {0, 2, now_ns + 1, 103, {}}, 0);
    return packer.datagrams()[0];
  };
  std::mt19937 random(1);
  for (int i = 0; i < 2'000; ++i) {
    Datagram noise(random() % 1'400);
    for (char& byte : noise) {
      byte = char(random());
    }
    sendDatagram(noise);
    Datagram damaged = arrival(2, kToken + 1);
    // Bytes 24 to 27 hold the number of the sending host.
    damaged[24 + random() % 4] ^= char(1 + random() % 255);
    damaged.resize(random() % damaged.size());
    sendDatagram(damaged);
  }
  sendDatagram(arrival(2, kToken));
  sendDatagram(arrival(ArrivalCarrier::kMaxHosts, kToken + 1));
  sleepMs(50);
  ArrivalBoard::Last last;
  CHECK(local.host.last(0, now_ns, last) == State::kMissing);
  // The noise may have filled the socket's buffer, so a datagram may be lost.
  CHECK(becomesTrue([&] {
    sendDatagram(arrival(2, kToken + 1));
    return local.host.last(0, now_ns, last) == State::kKnown;
  }));
  CHECK_EQ(last.rank, 103u);
}

void aForkedChildInheritsNoCarrier() {
  HostCarrier& carrier = HostCarrier::instance();
  ClockSync::instance().track().setSame();
  const size_t open_before = openFiles();
  CHECK_THROWS(std::logic_error, carrier.carry({kLoopback, kToken, 1}));
  CHECK_THROWS(std::logic_error, carrier.addPeer({1, kLoopback, 9, 1}));
  carrier.makeBoard(kToken);
  CHECK(carrier.carry({kLoopback, kToken, 2}) != 0);
  carrier.addPeer({1, kLoopback, 9, 1});
  for (int i = 0; i < 5; ++i) {
    sleepMs(30);
    const pid_t pid = fork();
    if (pid == 0) {
      check::failed = 0;
      CHECK_EQ(openFiles(), open_before);
      CHECK(!ClockSync::instance().track().line());
      carrier.flush();
      carrier.stop();
      CHECK_THROWS(std::logic_error, carrier.carry({kLoopback, kToken, 1}));
      _exit(check::failed == 0 ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
  }
  carrier.makeBoard(kToken + 1);
  CHECK_THROWS(std::logic_error, carrier.addPeer({1, kLoopback, 9, 1}));
  carrier.stop();
  CHECK_EQ(openFiles(), open_before);
}

} // namespace

int main() {
  arrivalsCrossHostsAndClocks();
  arrivalsAreUnknownUntilClocksAreCompared();
  anUnreachablePeerOnlyCountsAsUnsent();
  aHostWithoutItsParentSendsToTheNextOne();
  withoutTheRootTheNextHostTakesItsPlace();
  foreignDatagramsAreIgnored();
  aForkedChildInheritsNoCarrier();
  return check::report();
}
