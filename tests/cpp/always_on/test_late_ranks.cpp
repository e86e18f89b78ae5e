#include "always_on/arrivals/late_ranks.h"

#include <string>

#include "always_on/wait_ledger.h"
#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kDay = 86'400'000 * kMs;
constexpr uint64_t kBlock = LateRanks::kFirstBlockNs;

std::string waitedFor(uint64_t block_ns, const std::string& cells) {
  return "\"waited_for\":{\"block_ns\":" + std::to_string(block_ns) +
      ",\"cells\":[" + cells + "]}";
}

std::string cell(uint64_t block, uint32_t rank, uint64_t wait_ns) {
  return std::to_string(block) + "," + std::to_string(rank) + "," +
      std::to_string(wait_ns);
}

template <class Kept>
bool holds(const Kept& kept, const std::string& part) {
  std::string out;
  kept.appendJson(out);
  return out.find(part) != std::string::npos;
}

void timeBlocksGrowToBoundTheirNumber() {
  LateRanks late;
  for (uint64_t second = 0; second < 10'000; ++second) {
    late.exposed(second * 1'000 * kMs, second % 3, 5);
  }
  std::string json;
  late.appendJson(json);
  CHECK(json.size() < 12'000);
  // Every third number of the cells is a waiting time in ns.
  uint64_t sum = 0;
  size_t at = json.find("\"cells\":[") + 9;
  for (uint64_t i = 0; json[at - 1] != ']'; ++i) {
    size_t length = 0;
    const uint64_t value = std::stoull(json.substr(at), &length);
    sum += i % 3 == 2 ? value : 0;
    at += length + 1;
  }
  CHECK_EQ(sum, 50'000u);
}

void timesMoveByWholeBlocks() {
  LateRanks late;
  late.exposed(1'000 * kBlock, 2, 5);
  late.exposed(1'003 * kBlock, 1, 7);
  late.moveExposed(int64_t(kBlock) * 2 / 5);
  CHECK(holds(
      late, waitedFor(kBlock, cell(1'000, 2, 5) + "," + cell(1'003, 1, 7))));
  late.moveExposed(int64_t(kBlock) * 8 / 5);
  CHECK(holds(
      late, waitedFor(kBlock, cell(1'002, 2, 5) + "," + cell(1'005, 1, 7))));
  late.moveExposed(-900 * int64_t(kBlock));
  late.exposed(105 * kBlock, 1, 1);
  CHECK(
      holds(late, waitedFor(kBlock, cell(102, 2, 5) + "," + cell(105, 1, 8))));
}

// Only the 1,024 ranks for which others waited longest are listed.
void theNumberOfRanksIsBounded() {
  LateRanks late;
  for (uint32_t rank = 0; rank < 8192; ++rank) {
    late.wasLast(rank, rank);
    late.exposed(kBlock, rank, rank);
  }
  std::string text;
  late.appendJson(text);
  CHECK(text.size() < 100'000);
  const auto has = [&](const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has("{\"rank\":8191,\"count\":1,\"wait_ns\":8191}"));
  CHECK(has("{\"rank\":7168,"));
  CHECK(!has("{\"rank\":7167,"));
  const std::string others_ns = std::to_string(uint64_t(7168) * 7167 / 2);
  CHECK(has("\"last_others\":{\"count\":7168,\"wait_ns\":" + others_ns + "}"));
  CHECK(has(cell(1, 8191, 8191)));
  CHECK(!has(cell(1, 7000, 7000)));
}

struct Neighbours {
  std::shared_ptr<ArrivalBoard> board = ArrivalBoard::create(1);
  ArrivalExchange exchange;
  ArrivalExchange late_exchange;
  WaitLedger ledger{exchange};
  WaitLedger late_ledger{late_exchange};

  Neighbours() {
    exchange.addGroup({1, "dp", 0, 2});
    exchange.setBoard(board, 0);
    late_exchange.addGroup({1, "dp", 1, 2});
    late_exchange.setBoard(board, 1);
  }
  void step(uint64_t number) {
    const uint64_t at_ns = 10 * kDay + number * 100 * kMs;
    Record record;
    record.kind = Kind::kIssue;
    record.op = Op::kAllReduce;
    record.op_id = number;
    record.seq = uint32_t(number);
    record.group = 1;
    record.timestamp_ns = at_ns;
    ledger.takeIssue(record, 0);
    record.timestamp_ns = at_ns + 20 * kMs;
    late_ledger.takeIssue(record, 0);
    ledger.takeStep(
        {at_ns,
         at_ns + 100 * kMs,
         20 * kMs,
         {{at_ns, at_ns + 20 * kMs, 20 * kMs, number, 0}}});
    ledger.resolve(at_ns + 101 * kMs);
    // Only the second call of resolve() splits the waits of a step.
    ledger.resolve(at_ns + 102 * kMs);
  }
  void setClock(bool known, int64_t offset_ns) {
    HostLinks links;
    links.clock_known = known;
    links.clock_offset_ns = offset_ns;
    board->setLinks(links);
  }
};

// Rank 0's host has been up for one day, so its clock is 9 days behind this
// host's clock.
void earlierStepsMoveWhenRank0sClockBecomesKnown() {
  Neighbours ranks;
  ranks.step(1);
  const uint64_t own_block = (10 * kDay + 100 * kMs) / kBlock;
  CHECK(holds(ranks.ledger, waitedFor(kBlock, cell(own_block, 1, 20 * kMs))));
  const auto ahead = int64_t(9 * kDay / kBlock * kBlock);
  ranks.setClock(true, -ahead);
  ranks.step(2);
  const auto bothCells = [&](uint64_t ahead_ns) {
    const uint64_t first = own_block - ahead_ns / kBlock;
    const uint64_t second = (10 * kDay + 200 * kMs - ahead_ns) / kBlock;
    return cell(first, 1, 20 * kMs) + "," + cell(second, 1, 20 * kMs);
  };
  CHECK(holds(ranks.ledger, waitedFor(kBlock, bothCells(uint64_t(ahead)))));
  ranks.setClock(false, 0);
  ranks.ledger.resolve(11 * kDay);
  CHECK(holds(ranks.ledger, waitedFor(kBlock, bothCells(uint64_t(ahead)))));
  ranks.setClock(true, -ahead / 2 / int64_t(kBlock) * int64_t(kBlock));
  ranks.ledger.resolve(11 * kDay);
  CHECK(holds(
      ranks.ledger,
      waitedFor(kBlock, bothCells(uint64_t(ahead) / 2 / kBlock * kBlock))));
}

} // namespace

int main() {
  timeBlocksGrowToBoundTheirNumber();
  timesMoveByWholeBlocks();
  earlierStepsMoveWhenRank0sClockBecomesKnown();
  theNumberOfRanksIsBounded();
  return check::report();
}
