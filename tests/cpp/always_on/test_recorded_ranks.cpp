// `test_recorded_ranks DIRECTORY` reads DIRECTORY/ranks and
// DIRECTORY/N.records, which a test in Python wrote. The program writes the
// summary of rank N to DIRECTORY/N.json.
#include "always_on/summary/summary.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"

using namespace commprof;

namespace {

constexpr size_t kLimit = 384 << 10;

struct RecordedRank {
  std::vector<GroupMembership> groups;
  std::vector<Record> records;
};
using Ranks = std::map<uint32_t, RecordedRank>;

std::map<uint32_t, std::string> summarised(const Ranks& ranks) {
  const std::shared_ptr<ArrivalBoard> board = ArrivalBoard::create(1);
  std::map<uint32_t, ArrivalExchange> exchanges;
  std::map<uint32_t, std::unique_ptr<Summary>> summaries;
  for (const auto& [number, rank] : ranks) {
    ArrivalExchange& exchange = exchanges[number];
    for (const GroupMembership& group : rank.groups) {
      exchange.addGroup(group);
    }
    exchange.setBoard(board, number);
    auto& summary = summaries[number];
    summary = std::make_unique<Summary>(0, exchange);
    // The recorder also folds pauses before all other records.
    std::vector<Record> records = rank.records;
    std::stable_partition(
        records.begin(), records.end(), [](const Record& record) {
          return record.kind == Kind::kPause;
        });
    summary->fold(records.data(), records.size());
  }
  std::map<uint32_t, std::string> found;
  for (auto& [number, summary] : summaries) {
    const uint64_t last_ns = ranks.at(number).records.back().timestamp_ns;
    // The first call resolves the operations, and the second call the steps.
    summary->resolve(last_ns);
    summary->resolve(last_ns);
    summary->settle();
    found[number] = summary->json({1, last_ns, Mode::kAlwaysOn, 0}, kLimit);
  }
  return found;
}

Ranks read(const std::string& directory) {
  Ranks ranks;
  std::ifstream lines(directory + "/ranks");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    uint32_t number = 0;
    GroupMembership group;
    words >> number >> group.id >> group.name >> group.rank >> group.size;
    group.is_gloo = true;
    ranks[number].groups.push_back(group);
  }
  for (auto& [number, rank] : ranks) {
    std::ifstream file(
        directory + "/" + std::to_string(number) + ".records",
        std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    rank.records.resize(bytes.size() / sizeof(Record));
    std::copy_n(
        bytes.data(),
        rank.records.size() * sizeof(Record),
        reinterpret_cast<char*>(rank.records.data()));
  }
  return ranks;
}

void theLateRankOfRecordingsIsTheOneThatIsWaitedFor() {
  constexpr uint64_t kMs = 1'000'000;
  Ranks ranks;
  for (uint32_t number = 0; number < 2; ++number) {
    RecordedRank& rank = ranks[number];
    rank.groups.push_back({1, "all", number, 2, true});
    const auto add = [&](Kind kind, uint64_t at_ns, uint64_t op_id) -> Record& {
      Record& made = rank.records.emplace_back();
      made.kind = kind;
      made.timestamp_ns = at_ns;
      made.op_id = op_id;
      made.thread = 7;
      return made;
    };
    add(Kind::kStep, kMs, 0);
    for (uint64_t step = 0; step < 3; ++step) {
      const uint64_t last_ns = (20 * step + 11) * kMs;
      const uint64_t issue_ns = last_ns - (number == 0 ? 5 * kMs : 0);
      Record& issue = add(Kind::kIssue, issue_ns, step + 1);
      issue.op = Op::kAllReduce;
      issue.group = 1;
      issue.seq = uint32_t(step);
      Record& wait = add(Kind::kWait, issue_ns, step + 1);
      wait.op = Op::kAllReduce;
      wait.value = last_ns + kMs;
      add(Kind::kEnd, last_ns + kMs, step + 1).op = Op::kAllReduce;
      Record& ends = add(Kind::kStep, (20 * step + 21) * kMs, step);
      ends.aux = 1;
    }
  }
  const std::map<uint32_t, std::string> found = summarised(ranks);
  const auto holds = [&](uint32_t rank, const std::string& part) {
    return found.at(rank).find(part) != std::string::npos;
  };
  const std::string last = "\"last\":[{\"rank\":1,\"count\":3,\"wait_ns\":";
  CHECK(holds(0, last + "15000000}]"));
  CHECK(holds(1, last + "0}]"));
  CHECK(holds(0, "\"unknown\":0"));
}

} // namespace

int main(int count, char** arguments) {
  if (count == 2) {
    const std::string directory = arguments[1];
    for (const auto& [rank, json] : summarised(read(directory))) {
      std::ofstream(directory + "/" + std::to_string(rank) + ".json") << json;
    }
    return 0;
  }
  theLateRankOfRecordingsIsTheOneThatIsWaitedFor();
  return check::report();
}
