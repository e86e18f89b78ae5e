#include "always_on/hosts/arrival_tree.h"

#include <functional>

#include "arrival_hosts.h"
#include "check.h"

using namespace commprof;
using namespace arrival_hosts;
using State = ArrivalBoard::State;

namespace {

constexpr uint64_t kToken = 4711;
constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMs;

// The parent of host i is host parents[i - 1]; the parent of the root is 0.
// Host i's clock is i seconds ahead of the true time.
struct Tree {
  struct Node {
    Host host;
    ArrivalTree tree{*host.board};
    uint32_t parent;
    bool is_silent = false;
    Node(uint32_t number, uint32_t parent_host)
        : host(int64_t(number * kSecond), 2 * (number - 1)),
          parent(parent_host) {}
  };
  std::vector<std::unique_ptr<Node>> nodes;
  uint32_t size;
  uint64_t now_ns = 1000 * kSecond;
  uint64_t datagrams = 0;
  std::function<bool()> is_lost = [] { return false; };

  explicit Tree(const std::vector<uint32_t>& parents, bool join = true)
      : size(uint32_t(2 * parents.size())) {
    for (const uint32_t parent : parents) {
      nodes.push_back(
          std::make_unique<Node>(uint32_t(nodes.size()) + 1, parent));
      Host& host = nodes.back()->host;
      host.clock.add({host.ownNs(now_ns), -host.ahead_ns, 100, 200});
      if (join) {
        joinHost(uint32_t(nodes.size()));
      }
    }
  }
  void joinHost(uint32_t number) {
    Host& host = nodes[number - 1]->host;
    for (uint32_t rank = host.first_rank; rank < host.first_rank + 2; ++rank) {
      host.board->join(
          {kGroup, rank, size, 100 + rank}, host.ranks.emplace_back());
    }
  }
  void post(
      uint32_t rank,
      uint32_t seq,
      uint64_t true_ns,
      ArrivalBoard::Kind kind = ArrivalBoard::Kind::kAll) {
    Host& host = nodes[rank / 2]->host;
    host.ranks[rank % 2].post(seq, host.ownNs(true_ns), kind);
  }
  void issue(uint32_t seq, uint32_t late) {
    for (uint32_t rank = 0; rank < size; ++rank) {
      post(rank, seq, now_ns + (rank == late ? 5'000 : rank));
    }
  }
  void deliver(const ArrivalPacker& packer, Node& to) {
    for (const Datagram& datagram : packer.datagrams()) {
      ++datagrams;
      const auto read = readArrivals(datagram.data(), datagram.size(), kToken);
      CHECK(read);
      if (!to.is_silent && !is_lost()) {
        to.tree.take(*read, to.host.ownNs(now_ns));
      }
    }
  }
  void round() {
    for (uint32_t number = 1; number <= nodes.size(); ++number) {
      Node& node = *nodes[number - 1];
      if (node.is_silent) {
        continue;
      }
      const uint64_t own_ns = node.host.ownNs(now_ns);
      const ClockLine line = *node.host.clock.line();
      node.tree.gather(line, own_ns);
      node.tree.advance(node.parent == 0, own_ns);
      if (node.parent != 0) {
        ArrivalPacker up({kToken, 0, number, 1, false});
        node.tree.packUp(up);
        deliver(up, *nodes[node.parent - 1]);
      }
      for (uint32_t child = 1; child <= nodes.size(); ++child) {
        if (nodes[child - 1]->parent == number) {
          ArrivalPacker down({kToken, 0, number, 1, true});
          node.tree.packDown(child, down);
          deliver(down, *nodes[child - 1]);
        }
      }
      node.tree.endOfRound();
      node.tree.publish(line, own_ns);
    }
    now_ns += 100 * kMs;
  }
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      round();
    }
  }
  State state(
      uint32_t number,
      uint32_t seq,
      ArrivalBoard::Last& last,
      const AskedAbout& asked = {}) const {
    const Host& host = nodes[number - 1]->host;
    AskedAbout own = asked;
    own.done_ns += asked.done_ns == UINT64_MAX ? 0 : uint64_t(host.ahead_ns);
    return host.ranks[0].last(seq, host.ownNs(now_ns), last, own);
  }
  void checkLast(uint32_t seq, uint32_t rank, uint64_t true_ns) const {
    for (uint32_t number = 1; number <= nodes.size(); ++number) {
      ArrivalBoard::Last last;
      CHECK(state(number, seq, last) == State::kKnown);
      CHECK_EQ(last.rank, 100 + rank);
      CHECK_EQ(last.at_ns, nodes[number - 1]->host.ownNs(true_ns));
    }
  }
};

const std::vector<uint32_t> kDeep{0, 1, 1, 2, 2};

void everyHostLearnsTheLastArrival() {
  Tree hosts(kDeep);
  for (uint32_t late = 0; late < hosts.size; ++late) {
    const uint64_t begin_ns = hosts.now_ns;
    hosts.issue(late, late);
    hosts.rounds(4);
    hosts.checkLast(late, late, begin_ns + 5'000);
  }
  ArrivalBoard::Last last;
  CHECK(hosts.state(1, 0, last) == State::kKnown);
  // The clock errors of two hosts add up. Each error is 100 ns, plus 500 ppm of
  // the time since the comparison.
  CHECK(last.clock_error_ns >= 200 && last.clock_error_ns < 2'000'000);
  hosts.rounds(3);
  const uint64_t before = hosts.datagrams;
  hosts.rounds(3);
  // The hosts send everything twice, and nothing after that.
  CHECK_EQ(hosts.datagrams, before);
}

void ofRanksThatArriveAtTheSameTimeTheLowestIsLast() {
  Tree hosts({2, 0, 2});
  for (uint32_t rank = 0; rank < 6; ++rank) {
    hosts.post(rank, 10, hosts.now_ns + (rank == 0 ? 0 : 5'000));
  }
  const uint64_t true_ns = hosts.now_ns + 5'000;
  hosts.rounds(6);
  hosts.checkLast(10, 1, true_ns);
}

void aLostDatagramLosesNothing() {
  for (int lost = 0; lost < 12; ++lost) {
    Tree hosts(kDeep);
    int sent = 0;
    hosts.is_lost = [&] { return sent++ == lost; };
    const uint64_t begin_ns = hosts.now_ns;
    hosts.issue(0, 7);
    hosts.rounds(8);
    hosts.checkLast(0, 7, begin_ns + 5'000);
  }
}

void smallGroupsStayBelowTheirCommonParent() {
  Tree hosts(kDeep, /*join=*/false);
  for (const uint32_t number : {4u, 5u}) {
    Host& host = hosts.nodes[number - 1]->host;
    host.board->join(
        {kGroup, number - 4, 2, number}, host.ranks.emplace_back());
    host.ranks[0].post(0, host.ownNs(hosts.now_ns + number));
  }
  hosts.rounds(5);
  ArrivalBoard::Last last;
  CHECK(hosts.state(4, 0, last) == State::kKnown);
  CHECK_EQ(last.rank, 5u);
  CHECK(hosts.state(5, 0, last) == State::kKnown);
  CHECK_EQ(hosts.nodes[0]->tree.skipped(), 0u);
  // Hosts 4 and 5 sent two datagrams each, and host 2 answered each host twice.
  // Host 2 may also have sent two datagrams to host 1.
  CHECK(hosts.datagrams >= 6 && hosts.datagrams <= 8);
}

void lateRanksOfAHostAreTaken() {
  Tree hosts({0, 1}, /*join=*/false);
  hosts.joinHost(1);
  Host& two = hosts.nodes[1]->host;
  two.board->join({kGroup, 2, 4, 102}, two.ranks.emplace_back());
  const uint64_t begin_ns = hosts.now_ns;
  hosts.post(0, 1, begin_ns);
  hosts.post(1, 1, begin_ns + 1);
  hosts.post(2, 1, begin_ns + 2);
  hosts.rounds(6);
  ArrivalBoard::Last last;
  CHECK(hosts.state(1, 1, last) == State::kMissing);
  two.board->join({kGroup, 3, 4, 103}, two.ranks.emplace_back());
  hosts.post(3, 1, begin_ns + 3);
  hosts.rounds(4);
  hosts.checkLast(1, 3, begin_ns + 3);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    hosts.post(rank, 0, begin_ns + (rank == 2 ? 9 : 0));
  }
  hosts.rounds(4);
  hosts.checkLast(0, 2, begin_ns + 9);
}

void collectivesAreFoundWhenSequenceNumbersWrap() {
  Tree hosts({0, 1});
  uint32_t seq = UINT32_MAX - 3;
  for (int round = 0; round < 5; ++round) {
    const uint64_t begin_ns = hosts.now_ns;
    for (int i = 0; i < 3; ++i) {
      hosts.issue(seq++, 3);
    }
    hosts.rounds(4);
    for (uint32_t back = 1; back <= 3; ++back) {
      hosts.checkLast(seq - back, 3, begin_ns + 5'000);
    }
  }
}

void aSilentHostCostsItsOwnFiguresOnly() {
  Tree hosts(kDeep);
  hosts.nodes[2]->is_silent = true;
  const uint64_t begin_ns = hosts.now_ns;
  hosts.issue(0, 7);
  hosts.rounds(20);
  ArrivalBoard::Last last;
  CHECK(hosts.state(1, 0, last) == State::kMissing);
  hosts.rounds(15);
  for (const uint32_t number : {1u, 2u, 4u, 5u}) {
    CHECK(hosts.state(number, 0, last) == State::kPartial);
    CHECK_EQ(last.rank, 107u);
    CHECK_EQ(last.at_ns, hosts.nodes[number - 1]->host.ownNs(begin_ns + 5'000));
  }
  CHECK(hosts.state(3, 0, last) == State::kMissing);
  hosts.nodes[2]->is_silent = false;
  hosts.rounds(5);
  hosts.checkLast(0, 7, begin_ns + 5'000);
  const uint64_t next_ns = hosts.now_ns;
  hosts.issue(1, 4);
  hosts.rounds(4);
  hosts.checkLast(1, 4, next_ns + 5'000);
}

// A host names a last rank only if at least half of the group was seen.
void aHostThatIsCutOffNamesNobody() {
  Tree hosts(kDeep);
  hosts.nodes[3]->parent = 0;
  hosts.issue(0, 7);
  hosts.rounds(40);
  ArrivalBoard::Last last;
  CHECK(hosts.state(4, 0, last) == State::kMissing);
  CHECK(hosts.state(1, 0, last) == State::kPartial);
  CHECK(last.rank != 107u && last.rank != 106u);
}

void nothingCountsTwiceWhenTheParentChanges() {
  Tree hosts(kDeep);
  hosts.nodes[2]->is_silent = true;
  hosts.issue(0, 7);
  hosts.rounds(2);
  hosts.nodes[3]->parent = 1;
  hosts.nodes[3]->tree.changeParent();
  hosts.rounds(10);
  ArrivalBoard::Last last;
  CHECK(hosts.state(1, 0, last) == State::kMissing);
  hosts.nodes[2]->is_silent = false;
  const uint64_t begin_ns = hosts.now_ns;
  hosts.issue(1, 7);
  hosts.rounds(4);
  hosts.checkLast(1, 7, begin_ns + 5'000);
}

void singleRanksCrossHosts() {
  Tree hosts({0, 1});
  const uint64_t begin_ns = hosts.now_ns;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    hosts.post(
        rank,
        0,
        begin_ns + rank * 1'000,
        rank == 2 ? ArrivalBoard::Kind::kRoot : ArrivalBoard::Kind::kSingle);
  }
  hosts.rounds(4);
  ArrivalBoard::Last last;
  // Rank 0 was done before rank 3 came, so rank 0 waited for the root.
  const Meaning broadcast{Op::kBroadcast, 2, true};
  CHECK(
      hosts.state(1, 0, last, {broadcast, begin_ns + 2'500}) == State::kKnown);
  CHECK_EQ(last.rank, 102u);
  hosts.checkLast(0, 3, begin_ns + 3'000);
}

void foreignCollectivesAreIgnored() {
  Tree hosts({0, 1});
  hosts.issue(10, 1);
  hosts.round();
  ArrivalTree& tree = hosts.nodes[0]->tree;
  const uint64_t now_ns = hosts.now_ns;
  const auto publish = [&](uint64_t key,
                           uint32_t size,
                           const KnownArrivals& known) {
    tree.take(
        {{kToken, 0, 2, 1, true}, 0, {{key, size, {known}}}},
        hosts.nodes[0]->host.ownNs(now_ns));
    tree.publish(
        *hosts.nodes[0]->host.clock.line(), hosts.nodes[0]->host.ownNs(now_ns));
  };
  ArrivalBoard::Last last;
  const auto is_missing = [&] {
    return hosts.state(1, 10, last) == State::kMissing;
  };
  publish(78, 4, {10, 4, now_ns, 102});
  publish(kGroup, 5, {10, 5, now_ns, 102});
  publish(kGroup, 4, {10 + 2 * ArrivalBoard::kSlots, 4, now_ns, 102});
  publish(kGroup, 4, {10, 2, now_ns + 2 * ArrivalTree::kFutureNs, 102});
  publish(kGroup, 4, {10, 3, now_ns - 2 * ArrivalTree::kPastNs, 102});
  CHECK(is_missing());
  publish(kGroup, 4, {10, 4, now_ns, 102});
  CHECK(hosts.state(1, 10, last) == State::kKnown);
  CHECK_EQ(last.rank, 102u);
}

// Groups of more than 64 ranks have room of their own.
void whatIsKeptIsBounded() {
  ArrivalTree tree(*Tree({0}).nodes[0]->host.board);
  ArrivalMessage message{{kToken, 0, 2, 1, false}, 0, {{kGroup, 65, {}}}};
  message.runs[0].collectives.push_back({0, 1, kSecond, 1});
  tree.take(message, kSecond);
  message.runs[0] = {kGroup + 1, 8, {}};
  for (uint32_t seq = 0; seq < ArrivalTree::kMaxCollectives + 100; ++seq) {
    message.runs[0].collectives = {{seq, 1, kSecond, 1}};
    tree.take(message, kSecond);
  }
  CHECK_EQ(tree.skipped(), 100u);
  tree.advance(true, kSecond + ArrivalTree::kKeepNs + 1);
  CHECK_EQ(tree.skipped(), 100u);
}

void groupsOnOneHostAreNotSent() {
  Tree hosts({0, 1}, /*join=*/false);
  Host& host = hosts.nodes[1]->host;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(host.board->join({99, rank, 2, rank}, host.ranks.emplace_back()));
    host.ranks[rank].post(0, host.ownNs(hosts.now_ns));
  }
  hosts.rounds(3);
  CHECK_EQ(hosts.datagrams, 0u);
  ArrivalBoard::Last last;
  CHECK(host.ranks[0].last(0, host.ownNs(hosts.now_ns), last) == State::kKnown);
}

} // namespace

int main() {
  everyHostLearnsTheLastArrival();
  ofRanksThatArriveAtTheSameTimeTheLowestIsLast();
  aLostDatagramLosesNothing();
  smallGroupsStayBelowTheirCommonParent();
  lateRanksOfAHostAreTaken();
  collectivesAreFoundWhenSequenceNumbersWrap();
  aSilentHostCostsItsOwnFiguresOnly();
  aHostThatIsCutOffNamesNobody();
  nothingCountsTwiceWhenTheParentChanges();
  singleRanksCrossHosts();
  foreignCollectivesAreIgnored();
  whatIsKeptIsBounded();
  groupsOnOneHostAreNotSent();
  return check::report();
}
