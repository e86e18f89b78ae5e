#include "always_on/wait_ledger.h"

#include <memory>
#include <utility>
#include <vector>

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kBegin = 100'000 * kMs;

struct Rank {
  ArrivalExchange exchange;
  WaitLedger ledger{exchange};

  Rank(const std::shared_ptr<ArrivalBoard>& board, uint32_t rank) {
    exchange.addGroup({1, "dp", rank, 2});
    exchange.addGroup({2, "all", rank, 4, true});
    exchange.setBoard(board, rank);
  }
  void run(Op op, uint32_t peer, uint64_t at_ns, uint64_t end_ns) {
    Record record;
    record.kind = Kind::kIssue;
    record.op = op;
    record.op_id = 9;
    record.group = 2;
    record.aux = peer;
    record.timestamp_ns = kBegin + at_ns;
    ledger.takeIssue(record, 3);
    record.kind = isPointToPoint(op) ? Kind::kWait : Kind::kEnd;
    record.value = kBegin + end_ns;
    if (isPointToPoint(op)) {
      ledger.takeWait(record);
    } else {
      record.timestamp_ns = record.value;
      ledger.takeEnd(record);
    }
  }
  void issue(uint64_t op_id, uint64_t at_ns, uint64_t task = 0) {
    Record record;
    record.kind = Kind::kIssue;
    record.op = Op::kAllReduce;
    record.op_id = op_id;
    record.seq = uint32_t(op_id);
    record.group = 1;
    record.bytes_in = 1'000;
    record.timestamp_ns = kBegin + at_ns;
    record.value = task;
    ledger.takeIssue(record, uint32_t(op_id % 7));
  }
  void end(uint64_t op_id, uint64_t at_ns) {
    Record record;
    record.kind = Kind::kEnd;
    record.op = Op::kAllReduce;
    record.op_id = op_id;
    record.timestamp_ns = kBegin + at_ns;
    ledger.takeEnd(record);
  }
  std::string json() const {
    std::string out;
    ledger.appendJson(out);
    return out;
  }
  bool holds(const std::string& part) const {
    return json().find(part) != std::string::npos;
  }
};

struct Pair {
  std::shared_ptr<ArrivalBoard> board = ArrivalBoard::create(1);
  Rank early{board, 0};
  Rank late{board, 1};
};

std::string histogram(const std::vector<uint64_t>& values) {
  Histogram made;
  for (const uint64_t value : values) {
    made.add(value);
  }
  std::string out;
  made.appendJson(out);
  return out;
}

void aCollectiveIsSplitAtTheLastArrival() {
  Pair ranks;
  ranks.early.end(3, 24 * kMs);
  ranks.early.issue(3, 1 * kMs);
  CHECK(ranks.early.ledger.resolve(kBegin + 25 * kMs).empty());
  CHECK(ranks.early.ledger.pending());
  ranks.late.issue(3, 21 * kMs);
  ranks.late.end(3, 24 * kMs);
  const auto early = ranks.early.ledger.resolve(kBegin + 26 * kMs);
  const auto late = ranks.late.ledger.resolve(kBegin + 26 * kMs);
  CHECK_EQ(early.size(), 1u);
  CHECK_EQ(late.size(), 1u);
  CHECK_EQ(early[0].operation, 3u);
  CHECK_EQ(early[0].wait_ns, 20 * kMs);
  CHECK_EQ(early[0].transfer_ns, 3 * kMs);
  CHECK_EQ(late[0].wait_ns, 0u);
  CHECK_EQ(late[0].transfer_ns, 3 * kMs);
  CHECK(!ranks.early.ledger.pending());
  CHECK(ranks.early.holds(
      "\"last\":[{\"rank\":1,\"count\":1,\"wait_ns\":20000000}]"));
  CHECK(ranks.late.holds("\"last\":[{\"rank\":1,\"count\":1,\"wait_ns\":0}]"));
  CHECK(ranks.early.holds("\"arrivals\":{\"known\":1,\"unknown\":0,"));
}

// gloo's reduce-scatter reports its completion only to the thread that waits.
void aCollectiveWithoutAnEndEndsWithItsWait() {
  Pair ranks;
  ranks.early.issue(3, 1 * kMs);
  ranks.late.issue(3, 21 * kMs);
  Record waited;
  waited.kind = Kind::kWait;
  waited.op = Op::kReduceScatterTensor;
  waited.op_id = 3;
  waited.timestamp_ns = kBegin + 2 * kMs;
  waited.value = kBegin + 24 * kMs;
  ranks.early.ledger.takeWait(waited);
  CHECK(ranks.early.ledger.resolve(kBegin + 30 * kMs).empty());
  CHECK(ranks.early.ledger.pending());
  const auto found =
      ranks.early.ledger.resolve(kBegin + 30 * kMs + WaitLedger::kPatienceNs);
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].wait_ns, 20 * kMs);
  CHECK_EQ(found[0].transfer_ns, 3 * kMs);
  CHECK(!ranks.early.ledger.pending());
}

// If the clocks of two hosts differ, an arrival may seem to be later than the
// end.
void aWaitForALateRankEndsWithTheCollective() {
  Pair ranks;
  ranks.early.issue(3, 1 * kMs);
  ranks.late.issue(3, 21 * kMs);
  CHECK(ranks.early.ledger.resolve(kBegin + 25 * kMs).empty());
  ranks.early.end(3, 5 * kMs);
  const auto early = ranks.early.ledger.resolve(kBegin + 26 * kMs);
  CHECK_EQ(early.size(), 1u);
  CHECK_EQ(early[0].wait_ns, 4 * kMs);
  CHECK_EQ(early[0].transfer_ns, 0u);
}

void bucketEndsAreFoundByGraphTask() {
  Pair ranks;
  const uint64_t graph_task = 7;
  std::vector<BucketEnd> found;
  ranks.early.issue(3, 1 * kMs, graph_task + 1);
  ranks.early.issue(4, 2 * kMs, graph_task + 1);
  ranks.early.end(3, 5 * kMs);
  CHECK(!ranks.early.ledger.bucketEnds(graph_task, kBegin, found));
  ranks.early.end(4, 6 * kMs);
  CHECK(ranks.early.ledger.bucketEnds(graph_task, kBegin + 2 * kMs, found));
  CHECK_EQ(found.size(), 2u);
  CHECK_EQ(found[0].end_ns, 3.0 * kMs);
  CHECK_EQ(found[1].end_ns, 4.0 * kMs);
  CHECK_EQ(found[1].size_bytes, 1'000.0);
}

void onADeviceARankArrivesWhenItsStreamDoes() {
  Pair ranks;
  const auto issue = [](Rank& rank, uint64_t at_ns) {
    Record record;
    record.kind = Kind::kIssue;
    record.op = Op::kAllReduce;
    record.op_id = record.seq = 3;
    record.group = 1;
    record.flags = kDeviceAsync;
    record.timestamp_ns = kBegin + at_ns;
    rank.ledger.takeIssue(record, 3);
  };
  const auto ready = [](Rank& rank, uint64_t at_ns) {
    Record record;
    record.kind = Kind::kDeviceReady;
    record.op = Op::kAllReduce;
    record.op_id = 3;
    record.timestamp_ns = kBegin + at_ns;
    rank.ledger.takeReady(record);
  };
  issue(ranks.early, 0);
  CHECK(!ranks.early.ledger.pending());
  ready(ranks.early, 1 * kMs);
  ready(ranks.late, 21 * kMs);
  issue(ranks.late, 0);
  ranks.early.end(3, 24 * kMs);
  const auto early = ranks.early.ledger.resolve(kBegin + 25 * kMs);
  CHECK_EQ(early.size(), 1u);
  CHECK_EQ(early[0].wait_ns, 20 * kMs);
  CHECK_EQ(early[0].transfer_ns, 3 * kMs);
  CHECK(ranks.early.holds("\"last\":[{\"rank\":1,\"count\":1,"));
}

// The window ends after 10 ns. The second of two equal buckets was complete
// after 6 ns, so each copy took 4 ns.
void copyTimeFollowsFromTheBucketEnds() {
  CHECK_EQ(copyingNs(10, {{6, 100}}), 4.0);
  CHECK_EQ(copyingNs(10, {{2, 100}, {6, 100}}), 8.0);
  CHECK_EQ(copyingNs(10, {{-5, 100}, {-3, 100}}), 10.0);
  CHECK_EQ(copyingNs(10, {}), 0.0);
}

// `expected_waits` has, for each rank, the last rank and the waiting time in
// ms.
void checkWaits(
    Op op,
    const std::vector<uint64_t>& issue_ms,
    const std::vector<uint64_t>& end_ms,
    const std::vector<std::pair<uint32_t, uint64_t>>& expected_waits) {
  const std::shared_ptr<ArrivalBoard> board = ArrivalBoard::create(1);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<Rank>(board, rank));
    ranks[rank]->run(op, 0, issue_ms[rank] * kMs, end_ms[rank] * kMs);
  }
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto found = ranks[rank]->ledger.resolve(kBegin + 100 * kMs);
    CHECK_EQ(found.size(), 1u);
    const auto [last, wait_ms] = expected_waits[rank];
    CHECK_EQ(found[0].wait_ns, wait_ms * kMs);
    CHECK(ranks[rank]->holds("\"last\":[{\"rank\":" + std::to_string(last)));
  }
}

// In gloo's broadcast from rank 0, only rank 1 sends to rank 3.
void onlyTheParentOfALateLeafWaitsForIt() {
  const std::vector<uint64_t> issue_ms{20, 5, 5, 50};
  checkWaits(
      Op::kBroadcast,
      issue_ms,
      {30, 55, 30, 55},
      {{0, 0}, {3, 45}, {0, 15}, {3, 0}});
  checkWaits(
      Op::kScatter,
      issue_ms,
      {55, 30, 30, 55},
      {{3, 30}, {0, 15}, {0, 15}, {3, 0}});
}

void aRankThatFinishedEarlyIsNotChargedForLaterArrivals() {
  checkWaits(
      Op::kReduce,
      {1, 3, 2, 9},
      {4, 12, 12, 12},
      {{1, 2}, {3, 6}, {3, 7}, {3, 0}});
}

void aSenderWaitsForItsReceiver() {
  const std::shared_ptr<ArrivalBoard> board = ArrivalBoard::create(1);
  Rank receiver{board, 0};
  Rank sender{board, 2};
  sender.run(Op::kSend, 0, 2 * kMs, 9 * kMs);
  receiver.run(Op::kRecv, 2, 8 * kMs, 9 * kMs);
  const auto sent = sender.ledger.resolve(kBegin + 10 * kMs);
  CHECK_EQ(sent.size(), 1u);
  CHECK_EQ(sent[0].wait_ns, 6 * kMs);
  CHECK(sender.holds("\"last\":[{\"rank\":0,"));
  CHECK_EQ(receiver.ledger.resolve(kBegin + 10 * kMs).size(), 1u);
  CHECK(receiver.holds("\"last\":[{\"rank\":0,\"count\":1,\"wait_ns\":0}]"));
  receiver.run(Op::kRecvAnySource, 2, 8 * kMs, 9 * kMs);
  CHECK(receiver.holds("\"known\":1,\"unknown\":0,"));
}

void aWaitIsSplitWhenItsStepIsOver() {
  Pair ranks;
  ranks.early.issue(1, 1 * kMs);
  ranks.early.ledger.takeStep(
      {kBegin,
       kBegin + 30 * kMs,
       22 * kMs,
       {{kBegin + 2 * kMs, kBegin + 24 * kMs, 22 * kMs, 1, 0}}});
  ranks.late.issue(1, 21 * kMs);
  ranks.early.ledger.resolve(kBegin + 31 * kMs);
  CHECK(ranks.early.holds("\"exposed_wait\":" + histogram({})));
  // Only the second call of resolve() splits the waits of a step.
  ranks.early.ledger.resolve(kBegin + 32 * kMs);
  CHECK(ranks.early.holds("\"exposed_wait\":" + histogram({19 * kMs})));
  CHECK(ranks.early.holds("\"exposed_transfer\":" + histogram({3 * kMs})));
  const uint64_t block = (kBegin + 2 * kMs) / LateRanks::kFirstBlockNs;
  CHECK(ranks.early.holds(
      "\"waited_for\":{\"block_ns\":16777216,\"cells\":[" +
      std::to_string(block) + ",1,19000000]}"));
}

// When rank 1 arrived at the first bucket, the network was free, so this bucket
// decides. The finalisation is blocked from 5 to 15 ms.
void aFinalisationIsSplitAtTheDecidingBucket() {
  Pair ranks;
  ranks.early.issue(1, 1 * kMs, 9);
  ranks.early.issue(2, 2 * kMs, 9);
  ranks.late.issue(1, 10 * kMs, 4);
  ranks.late.issue(2, 11 * kMs, 4);
  ranks.early.end(1, 13 * kMs);
  ranks.early.ledger.takeStep(
      {kBegin,
       kBegin + 20 * kMs,
       10 * kMs,
       {{kBegin + 5 * kMs, kBegin + 15 * kMs, 10 * kMs, 0, 8}}});
  ranks.early.ledger.resolve(kBegin + 21 * kMs);
  ranks.early.ledger.resolve(kBegin + 22 * kMs);
  CHECK(ranks.early.ledger.pending());
  ranks.early.end(2, 15 * kMs);
  ranks.early.ledger.resolve(kBegin + 23 * kMs);
  CHECK(ranks.early.holds("\"exposed_wait\":" + histogram({5 * kMs})));
  CHECK(ranks.early.holds("\"exposed_transfer\":" + histogram({5 * kMs})));
}

void aMissingArrivalIsGivenUpAfterATimeout() {
  Pair ranks;
  ranks.early.issue(1, 1 * kMs);
  ranks.early.end(1, 2 * kMs);
  ranks.early.ledger.takeStep(
      {kBegin,
       kBegin + 3 * kMs,
       1 * kMs,
       {{kBegin + 1 * kMs, kBegin + 2 * kMs, 1 * kMs, 1, 0}}});
  const uint64_t timeout_ns = WaitLedger::kPatienceNs;
  ranks.early.ledger.resolve(kBegin + timeout_ns);
  CHECK(ranks.early.ledger.pending());
  ranks.early.ledger.resolve(kBegin + timeout_ns + 10 * kMs);
  CHECK(!ranks.early.ledger.pending());
  CHECK(ranks.early.holds(
      "\"known\":0,\"unknown\":1,\"without_place\":0,\"unlisted\":0,"
      "\"partial\":0,\"unsplit_steps\":1,"
      "\"unsplit_ns\":1000000}"));
  ranks.early.ledger.forgetSteps();
  CHECK(ranks.early.holds("\"unsplit_steps\":0,\"unsplit_ns\":0}"));
}

void aStepCountsAsUnsplitOnlyAfterTheTimeout() {
  Pair ranks;
  const auto step = [&](uint64_t op_id) {
    const uint64_t at_ns = kBegin + op_id * 10 * kMs;
    ranks.early.issue(op_id, at_ns - kBegin);
    ranks.early.ledger.takeStep(
        {at_ns,
         at_ns + 9 * kMs,
         7 * kMs,
         {{at_ns + 1 * kMs, at_ns + 8 * kMs, 7 * kMs, op_id, 0}}});
  };
  step(1);
  const uint64_t timeout_ns = WaitLedger::kPatienceNs;
  ranks.early.ledger.resolve(kBegin + 20 * kMs);
  ranks.early.ledger.resolve(kBegin + 21 * kMs);
  CHECK(ranks.early.holds("\"unsplit_steps\":0,\"unsplit_ns\":0}"));
  ranks.early.ledger.resolve(kBegin + timeout_ns + 20 * kMs);
  CHECK(ranks.early.holds("\"unsplit_steps\":1,\"unsplit_ns\":7000000}"));
  step(2);
  ranks.late.issue(2, 25 * kMs);
  ranks.early.end(2, 28 * kMs);
  for (uint64_t drain = 0; drain < 2; ++drain) {
    ranks.early.ledger.resolve(kBegin + (30 + drain) * kMs);
    CHECK(ranks.early.holds("\"unsplit_steps\":1,\"unsplit_ns\":7000000}"));
  }
  CHECK(ranks.early.holds("\"exposed_wait\":" + histogram({4 * kMs})));
  CHECK(ranks.early.holds("\"exposed_transfer\":" + histogram({3 * kMs})));
}

void withoutABoardArrivalsAreUnknown() {
  Rank alone(nullptr, 0);
  alone.issue(1, 1 * kMs);
  alone.end(1, 2 * kMs);
  CHECK(alone.ledger.resolve(kBegin + 3 * kMs).empty());
  CHECK(!alone.ledger.pending());
  CHECK(alone.holds("\"known\":0,\"unknown\":1,"));
  alone.exchange.addGroup({3, "self", 0, 1});
  Record record;
  record.kind = Kind::kIssue;
  record.op = Op::kAllReduce;
  record.op_id = 2;
  record.group = 3;
  record.timestamp_ns = kBegin;
  alone.ledger.takeIssue(record, 0);
  alone.end(2, 4 * kMs);
  const auto found = alone.ledger.resolve(kBegin + 5 * kMs);
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].transfer_ns, 4 * kMs);
}

void operationsOfGroupsWithoutAPlaceAreCounted() {
  Pair ranks;
  const uint32_t groups = ArrivalBoard::kMaxGroups + 1;
  uint64_t op_id = 0;
  for (uint32_t id = 3; id < 3 + groups; ++id) {
    const std::string name = "group " + std::to_string(id);
    ranks.early.exchange.addGroup({id, name, 0, 2});
    ranks.late.exchange.addGroup({id, name, 1, 2});
    Record record;
    record.kind = Kind::kIssue;
    record.op = Op::kAllReduce;
    record.op_id = ++op_id;
    record.group = id;
    record.timestamp_ns = kBegin;
    ranks.early.ledger.takeIssue(record, 0);
    ranks.late.ledger.takeIssue(record, 0);
    ranks.early.end(op_id, 2 * kMs);
  }
  CHECK_EQ(ranks.early.ledger.resolve(kBegin + 3 * kMs).size(), groups - 1u);
  CHECK(!ranks.early.ledger.pending());
  CHECK(ranks.early.holds(
      "\"known\":" + std::to_string(ArrivalBoard::kMaxGroups) +
      ",\"unknown\":1,\"without_place\":1,"));
}

void memoryIsBounded() {
  Pair ranks;
  const uint64_t count = 3 * WaitLedger::kMaxOpen;
  for (uint64_t id = 1; id <= count; ++id) {
    ranks.early.issue(id, id);
    ranks.early.ledger.takeStep({kBegin, kBegin + id, 3, {}});
  }
  ranks.early.ledger.resolve(kBegin + kMs);
  CHECK(ranks.early.holds(
      "\"unknown\":" + std::to_string(count - WaitLedger::kMaxOpen) +
      ",\"without_place\":0,\"unlisted\":0,\"partial\":0,\"unsplit_steps\":" +
      std::to_string(count - WaitLedger::kMaxSteps) + ",\"unsplit_ns\":" +
      std::to_string(3 * (count - WaitLedger::kMaxSteps)) + "}"));
}

void theClockErrorAcrossHostsIsRecorded() {
  const std::shared_ptr<ArrivalBoard> board = ArrivalBoard::create(1);
  const int64_t offset_ns = int64_t(1'000 * LateRanks::kFirstBlockNs);
  board->setLinks({true, offset_ns, 3, 2, 7, 4});
  Rank early{board, 0};
  early.issue(3, 1 * kMs);
  ArrivalBoard::Group group;
  uint64_t key = 0;
  for (uint32_t place = 0; !group; ++place) {
    group = board->at(place, key);
  }
  group.setLast(3, {kBegin + 21 * kMs, 250, 1, 0});
  early.end(3, 24 * kMs);
  early.ledger.takeStep(
      {kBegin,
       kBegin + 30 * kMs,
       22 * kMs,
       {{kBegin + 2 * kMs, kBegin + 24 * kMs, 22 * kMs, 3, 0}}});
  const auto found = early.ledger.resolve(kBegin + 31 * kMs);
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].wait_ns, 20 * kMs);
  early.ledger.resolve(kBegin + 32 * kMs);
  CHECK(early.holds("\"arrival_clock_error\":" + histogram({250})));
  CHECK(early.holds(
      "\"hosts\":{\"clock\":1,\"peers\":3,\"heard\":2,\"unsent\":7,"
      "\"skipped\":4}"));
  const uint64_t block = (kBegin + 2 * kMs) / LateRanks::kFirstBlockNs + 1'000;
  CHECK(early.holds(
      "\"cells\":[" + std::to_string(block) + ",1," + std::to_string(19 * kMs) +
      "]"));
}

void aPartialLastArrivalCountsAfterTheTimeout() {
  const std::shared_ptr<ArrivalBoard> board = ArrivalBoard::create(1);
  Rank early{board, 0};
  early.issue(3, 1 * kMs);
  ArrivalBoard::Group group;
  uint64_t key = 0;
  for (uint32_t place = 0; !group; ++place) {
    group = board->at(place, key);
  }
  group.setLast(3, {kBegin + 21 * kMs, 250, 1, 1});
  early.end(3, 24 * kMs);
  CHECK(early.ledger.resolve(kBegin + 4'900 * kMs).empty());
  const auto found = early.ledger.resolve(kBegin + 5'100 * kMs);
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].wait_ns, 20 * kMs);
  CHECK(early.holds(
      "\"known\":1,\"unknown\":0,\"without_place\":0,"
      "\"unlisted\":0,\"partial\":1,"));
}

} // namespace

int main() {
  aCollectiveIsSplitAtTheLastArrival();
  aCollectiveWithoutAnEndEndsWithItsWait();
  aWaitForALateRankEndsWithTheCollective();
  bucketEndsAreFoundByGraphTask();
  onADeviceARankArrivesWhenItsStreamDoes();
  copyTimeFollowsFromTheBucketEnds();
  onlyTheParentOfALateLeafWaitsForIt();
  aRankThatFinishedEarlyIsNotChargedForLaterArrivals();
  aSenderWaitsForItsReceiver();
  aWaitIsSplitWhenItsStepIsOver();
  aFinalisationIsSplitAtTheDecidingBucket();
  theClockErrorAcrossHostsIsRecorded();
  aPartialLastArrivalCountsAfterTheTimeout();
  aMissingArrivalIsGivenUpAfterATimeout();
  aStepCountsAsUnsplitOnlyAfterTheTimeout();
  withoutABoardArrivalsAreUnknown();
  operationsOfGroupsWithoutAPlaceAreCounted();
  memoryIsBounded();
  return check::report();
}
