// Tests arrivals from one host's board to another's, without a network.
#include "always_on/hosts/arrival_relay.h"
#include "arrival_hosts.h"
#include "check.h"

using namespace commprof;
using namespace arrival_hosts;
using State = ArrivalBoard::State;

namespace {

constexpr uint64_t kToken = 4711;
constexpr uint64_t kSecond = 1'000'000'000;

// Host 2 sends to host 1; host 2's clock is 3 s ahead.
struct Pair {
  Host one{0, 0};
  Host two{3 * int64_t(kSecond), 2};
  ArrivalSender sender{*two.board};
  ArrivalReceiver receiver{*one.board};
  uint64_t now_ns = 1000 * kSecond; // true time

  explicit Pair(bool join_one = true) {
    one.clock.setSame();
    two.clock.add({two.ownNs(now_ns), -two.ahead_ns, 100, 200});
    if (join_one) {
      one.join();
    }
    two.join();
  }
  std::vector<Datagram> collect() {
    ArrivalPacker packer(2);
    sender.collect(*two.clock.line(), two.ownNs(now_ns), packer);
    return packer.datagrams();
  }
  uint32_t deliver(std::vector<Datagram> datagrams) {
    uint32_t taken = 0;
    for (Datagram& datagram : datagrams) {
      setToken(datagram, kToken);
      const auto read = readArrivals(datagram.data(), datagram.size(), kToken);
      CHECK(read);
      taken += receiver.take(*read, *one.clock.line(), now_ns);
    }
    return taken;
  }
  // All ranks issue collective `seq` now, rank `late` 5 us later.
  void issue(uint32_t seq, uint32_t late) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Host& host = rank < 2 ? one : two;
      host.post(rank, seq, now_ns + (rank == late ? 5'000 : rank));
    }
  }
  ArrivalBoard::Last lastArrival(uint32_t seq) {
    ArrivalBoard::Last last;
    CHECK(one.last(seq, now_ns, last) == State::kKnown);
    return last;
  }
  bool missing(uint32_t seq) const {
    ArrivalBoard::Last last;
    return one.last(seq, now_ns, last) == State::kMissing;
  }
};

void arrivalTimesAreConvertedToTheReceiversClock() {
  Pair hosts;
  hosts.issue(0, 3);
  CHECK(hosts.missing(0));
  CHECK_EQ(hosts.deliver(hosts.collect()), 2u);
  ArrivalBoard::Last last = hosts.lastArrival(0);
  CHECK_EQ(last.rank, 103u);
  CHECK_EQ(last.at_ns, hosts.now_ns + 5'000);
  // 100 ns, plus 500 ppm of the 5 us since the comparison.
  CHECK_EQ(last.clock_error_ns, 103u);
  hosts.issue(1, 1);
  hosts.deliver(hosts.collect());
  last = hosts.lastArrival(1);
  CHECK_EQ(last.rank, 101u);
  CHECK_EQ(last.at_ns, hosts.now_ns + 5'000);
}

void arrivalsOfALostDatagramAreSentAgain() {
  Pair hosts;
  hosts.issue(0, 3);
  hosts.collect();
  hosts.now_ns += 2 * kSecond; // settled
  hosts.collect();
  hosts.issue(1, 3);
  CHECK(!hosts.collect().empty()); // lost
  hosts.issue(2, 2);
  CHECK_EQ(hosts.deliver(hosts.collect()), 2u);
  hosts.lastArrival(1);
  hosts.lastArrival(2);
  CHECK(hosts.missing(0));
  hosts.collect();
  CHECK(hosts.collect().empty()); // each arrival is sent twice
}

// Helper threads drain one ring after another, so numbers are out of order.
void anArrivalPostedOutOfOrderIsSent() {
  Pair hosts;
  hosts.issue(0, 3);
  hosts.collect();
  hosts.now_ns += 2 * kSecond;
  hosts.collect();
  hosts.issue(2, 3);
  hosts.deliver(hosts.collect());
  hosts.issue(1, 3);
  hosts.deliver(hosts.collect());
  hosts.lastArrival(1);
  hosts.lastArrival(2);
}

void arrivalsAreSentAgainToAHostThatJoinsLate() {
  Pair hosts(/*join_one=*/false);
  for (uint32_t rank = 2; rank < 4; ++rank) {
    hosts.two.post(rank, 0, hosts.now_ns);
  }
  CHECK_EQ(hosts.deliver(hosts.collect()), 0u); // nobody has joined
  hosts.one.join();
  CHECK_EQ(hosts.deliver(hosts.collect()), 0u); // nobody has issued
  hosts.one.post(0, 0, hosts.now_ns);
  hosts.one.post(1, 0, hosts.now_ns);
  hosts.now_ns += kSecond / 2;
  CHECK_EQ(hosts.deliver(hosts.collect()), 2u);
  hosts.lastArrival(0);
  // Arrivals are also sent again for a host that is found late.
  hosts.now_ns += 2 * kSecond;
  hosts.collect();
  hosts.collect();
  CHECK(hosts.collect().empty());
  hosts.sender.resendLatest(hosts.two.ownNs(hosts.now_ns));
  CHECK_EQ(hosts.deliver(hosts.collect()), 2u);
}

// More arrivals than fit into one call; those that no longer can be sent are
// skipped.
void arrivalsBeyondOneCallAreSentByLaterCalls() {
  Pair hosts;
  hosts.issue(0, 3);
  hosts.collect();
  hosts.now_ns += 2 * kSecond;
  hosts.collect();
  // Times that are encoded in five bytes each.
  const uint32_t count = ArrivalBoard::kSlots + 1'000;
  for (uint32_t seq = 1; seq <= count; ++seq) {
    for (uint32_t rank = 2; rank < 4; ++rank) {
      const uint64_t jump_ns = seq % 2 == 0 ? 0 : kSecond / 2;
      hosts.two.post(rank, seq, hosts.now_ns - jump_ns);
      hosts.one.post(rank - 2, seq, hosts.now_ns);
    }
  }
  int calls = 0;
  for (auto datagrams = hosts.collect(); !datagrams.empty();
       datagrams = hosts.collect()) {
    CHECK(datagrams.size() <= ArrivalPacker::kMaxDatagrams);
    hosts.deliver(datagrams);
    ++calls;
  }
  CHECK(calls > 2 && calls < 20);
  for (uint32_t seq = 1'001; seq <= count; ++seq) {
    hosts.lastArrival(seq);
  }
}

// A group's sequence numbers wrap after 2**32 collectives.
void arrivalsAreSentWhenSequenceNumbersWrap() {
  Pair hosts;
  uint32_t seq = UINT32_MAX - 3;
  hosts.issue(seq++, 3);
  hosts.deliver(hosts.collect());
  hosts.now_ns += 2 * kSecond; // settled
  hosts.collect();
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 3; ++i) {
      hosts.issue(seq++, 3);
    }
    CHECK(hosts.deliver(hosts.collect()) >= 2u);
    for (uint32_t back = 1; back <= 3; ++back) {
      CHECK_EQ(hosts.lastArrival(seq - back).rank, 103u);
    }
  }
  hosts.collect();
  CHECK(hosts.collect().empty()); // nothing is sent a third time
  // A rank of the other host that appears only now, and distant numbers.
  const ClockLine line = *hosts.one.clock.line();
  const auto accepts = [&](uint32_t first_seq) {
    const ArrivalRun run{{kGroup, 2, kRanks, 102}, first_seq, {hosts.now_ns}};
    return hosts.receiver.take({2, 0, {run}}, line, hosts.now_ns) != 0;
  };
  CHECK(accepts(UINT32_MAX));
  CHECK(!accepts(seq + ArrivalBoard::kSlots));
  CHECK(!accepts(seq - ArrivalBoard::kSlots - 2));
}

void foreignArrivalsAreIgnored() {
  Pair hosts;
  hosts.issue(10, 1);
  const ClockLine line = *hosts.one.clock.line();
  const auto accepts = [&](const ArrivalRun& run) {
    return hosts.receiver.take({2, 0, {run}}, line, hosts.now_ns) != 0;
  };
  const uint64_t now_ns = hosts.now_ns;
  const ArrivalRun good{{kGroup, 2, kRanks, 102}, 10, {now_ns}};
  ArrivalRun bad = good;
  bad.member.key = 78; // no such group
  CHECK(!accepts(bad));
  bad = good;
  bad.member.size = 5; // a different group size
  bad.member.rank = 4;
  CHECK(!accepts(bad));
  bad = good;
  bad.member.rank = 1; // a rank of this host
  CHECK(!accepts(bad));
  bad = good;
  bad.first_seq = 11 + ArrivalBoard::kSlots;
  CHECK(!accepts(bad));
  bad.first_seq = UINT32_MAX / 2;
  CHECK(!accepts(bad));
  bad = good;
  bad.common_ns = {now_ns, now_ns + 2 * ArrivalReceiver::kFutureNs};
  CHECK(!accepts(bad));
  bad.common_ns = {now_ns - 2 * ArrivalReceiver::kPastNs};
  CHECK(!accepts(bad));
  bad.common_ns = {UINT64_MAX};
  CHECK(!accepts(bad));
  CHECK(hosts.missing(10));
  CHECK(!hosts.one.ranks[0].isLocal(2));
  CHECK(accepts(good));
  CHECK(!hosts.one.ranks[0].isLocal(2));
  bad = good;
  bad.member.rank = 3;
  CHECK(accepts(bad));
  CHECK_EQ(hosts.lastArrival(10).rank, 101u);
}

// Arrivals of a group that is entirely on one host are not sent.
void arrivalsOfGroupsOnOneHostAreNotSent() {
  Pair hosts;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ArrivalBoard::Group pair;
    CHECK(hosts.two.board->join({99, rank, 2, 102 + rank}, pair));
    pair.post(0, hosts.two.ownNs(hosts.now_ns));
  }
  CHECK(hosts.collect().empty());
}

} // namespace

int main() {
  arrivalTimesAreConvertedToTheReceiversClock();
  arrivalsOfALostDatagramAreSentAgain();
  anArrivalPostedOutOfOrderIsSent();
  arrivalsAreSentAgainToAHostThatJoinsLate();
  arrivalsBeyondOneCallAreSentByLaterCalls();
  arrivalsAreSentWhenSequenceNumbersWrap();
  foreignArrivalsAreIgnored();
  arrivalsOfGroupsOnOneHostAreNotSent();
  return check::report();
}
