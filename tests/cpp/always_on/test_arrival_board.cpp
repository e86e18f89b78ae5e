#include "always_on/arrivals/arrival_board.h"

#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "check.h"

using namespace commprof;
using State = ArrivalBoard::State;

namespace {

constexpr uint64_t kToken = 4711;
constexpr uint64_t kBegin = 1'000'000'000;

uint64_t arrival(uint32_t rank, uint32_t seq, uint32_t ranks) {
  return kBegin + seq * 1'000 + (rank == seq % ranks ? 900 : rank * 10);
}

ArrivalBoard::Group joinGroup(
    ArrivalBoard& board,
    uint32_t rank,
    uint32_t ranks) {
  ArrivalBoard::Group group;
  while (!group) {
    CHECK(board.join({77, rank, ranks, 100 + rank}, group));
  }
  return group;
}

uint32_t runRank(
    ArrivalBoard& board,
    uint32_t rank,
    uint32_t ranks,
    uint32_t count) {
  ArrivalBoard::Group group = joinGroup(board, rank, ranks);
  uint32_t correct = 0;
  for (uint32_t seq = 0; seq < count; ++seq) {
    const uint64_t own_ns = arrival(rank, seq, ranks);
    group.post(seq, own_ns);
    ArrivalBoard::Last last;
    State state = State::kMissing;
    while (state == State::kMissing) {
      state = group.last(seq, own_ns, last);
      if (state == State::kMissing) {
        std::this_thread::yield();
      }
    }
    correct += state == State::kKnown && last.rank == 100 + seq % ranks &&
        last.at_ns == arrival(seq % ranks, seq, ranks);
  }
  return correct;
}

void threadsAsRanks() {
  const auto board = ArrivalBoard::create(kToken);
  const uint32_t ranks = 4;
  const uint32_t count = ArrivalBoard::kSlots + 1'000;
  std::vector<uint32_t> correct(ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(
        [&, rank] { correct[rank] = runRank(*board, rank, ranks, count); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const uint32_t correct_count : correct) {
    CHECK_EQ(correct_count, count);
  }
}

void processesAsRanks() {
  const auto board = ArrivalBoard::create(kToken);
  const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" +
      std::to_string(board->fd());
  std::vector<pid_t> children;
  for (uint32_t rank = 1; rank < 3; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const auto shared_board = ArrivalBoard::open(path, kToken);
      _exit(runRank(*shared_board, rank, 3, 5'000) == 5'000 ? 0 : 1);
    }
    children.push_back(child);
  }
  CHECK_EQ(runRank(*board, 0, 3, 5'000), 5'000u);
  for (const pid_t child : children) {
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
}

void filesThatAreNotThisBoardAreRejected() {
  const auto board = ArrivalBoard::create(kToken);
  const std::string fd_directory = "/proc/" + std::to_string(getpid()) + "/fd/";
  CHECK_THROWS(
      std::invalid_argument,
      ArrivalBoard::open(
          fd_directory + std::to_string(board->fd()), kToken + 1));
  CHECK_THROWS(
      std::invalid_argument, ArrivalBoard::open("/proc/self/status", kToken));
  CHECK_THROWS(std::invalid_argument, ArrivalBoard::open("/dev/null", kToken));
  CHECK_THROWS(
      std::system_error, ArrivalBoard::open(fd_directory + "9999", kToken));
}

void overwrittenArrivalsAreReportedAsLost() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group rank0 = joinGroup(*board, 0, 2);
  ArrivalBoard::Group rank1 = joinGroup(*board, 1, 2);
  ArrivalBoard::Last last;
  rank0.post(5, 100);
  CHECK(rank0.last(5, 100, last) == State::kMissing);
  rank1.post(5, 90);
  CHECK(rank0.last(5, 100, last) == State::kKnown);
  CHECK_EQ(last.at_ns, 100u);
  CHECK_EQ(last.rank, 100u);
  rank1.post(5 + ArrivalBoard::kSlots, 200);
  CHECK(rank0.last(5, 100, last) == State::kLost);
  CHECK(rank0.last(5 + ArrivalBoard::kSlots, 100, last) == State::kMissing);
}

void ofRanksThatArriveAtTheSameTimeTheLowestIsLast() {
  const auto board = ArrivalBoard::create(kToken);
  std::vector<ArrivalBoard::Group> ranks;
  for (const uint32_t rank : {1, 0, 2}) { // in the order of joining
    ranks.push_back(joinGroup(*board, rank, 3));
    ranks.back().post(0, kBegin + (rank == 0 ? 0 : 10));
    ranks.back().post(1, kBegin + 10);
  }
  for (const ArrivalBoard::Group& rank : ranks) {
    ArrivalBoard::Last last;
    CHECK(rank.last(0, kBegin, last) == State::kKnown);
    CHECK_EQ(last.rank, 101u);
    CHECK(rank.last(1, kBegin, last) == State::kKnown);
    CHECK_EQ(last.rank, 100u);
  }
}

// A cell of the board holds the lowest 45 bits of a time in nanoseconds.
void arrivalTimesAreCorrectWhenCellsWrap() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group rank0 = joinGroup(*board, 0, 2);
  ArrivalBoard::Group rank1 = joinGroup(*board, 1, 2);
  const uint64_t wrap_ns = uint64_t(3) << 45;
  rank0.post(UINT32_MAX, wrap_ns - 1'000);
  rank1.post(UINT32_MAX, wrap_ns + 500);
  ArrivalBoard::Last last;
  CHECK(rank0.last(UINT32_MAX, wrap_ns - 1'000, last) == State::kKnown);
  CHECK_EQ(last.at_ns, wrap_ns + 500);
  CHECK(rank1.last(UINT32_MAX, wrap_ns + 500, last) == State::kKnown);
  CHECK_EQ(last.at_ns, wrap_ns + 500);
}

void arrivalsAreFoundWhenSequenceNumbersWrap() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group rank0 = joinGroup(*board, 0, 2);
  ArrivalBoard::Group rank1 = joinGroup(*board, 1, 2);
  ArrivalBoard::Last last;
  uint64_t at_ns = kBegin;
  uint32_t seq = UINT32_MAX - ArrivalBoard::kSlots;
  for (uint32_t i = 0; i < 3 * ArrivalBoard::kSlots; ++i, ++seq) {
    at_ns += 1'000;
    rank0.post(seq, at_ns);
    CHECK(rank0.last(seq, at_ns, last) == State::kMissing);
    rank1.post(seq, at_ns + 10);
    CHECK(rank0.last(seq, at_ns, last) == State::kKnown);
    CHECK_EQ(last.rank, 101u);
    CHECK_EQ(last.at_ns, at_ns + 10);
    uint32_t end = 0;
    CHECK(rank0.newestEnd(end));
    CHECK_EQ(end, seq + 1);
  }
  CHECK(rank0.last(UINT32_MAX, at_ns, last) == State::kLost);
  std::vector<ArrivalBoard::Arrival> arrivals;
  rank0.arrivals(UINT32_MAX, at_ns, arrivals);
  CHECK(arrivals.empty());
  rank0.arrivals(seq - 1, at_ns, arrivals);
  CHECK_EQ(arrivals.size(), 2u);
  rank0.post(UINT32_MAX - 5, at_ns);
  uint32_t end = 0;
  CHECK(rank0.newestEnd(end));
  CHECK_EQ(end, seq);
}

void theNumberOfGroupsIsBounded() {
  const auto board = ArrivalBoard::create(kToken, 16);
  uint32_t joined = 0;
  for (uint64_t key = 1; key <= 2 * ArrivalBoard::kMaxGroups; ++key) {
    ArrivalBoard::Group group;
    for (uint32_t rank = 0; rank < 16; ++rank) {
      joined += board->join({key, rank, 16, rank}, group) && group;
    }
    CHECK(key > 8 || group.slots() == ArrivalBoard::kSlots);
  }
  CHECK(joined > 400 * 16);
  CHECK(board->usedBytes() <= ArrivalBoard::kBytes);
  const auto board_of_pairs = ArrivalBoard::create(kToken);
  joined = 0;
  for (uint64_t key = 1; key <= 2 * ArrivalBoard::kMaxGroups; ++key) {
    ArrivalBoard::Group group;
    joined += board_of_pairs->join({key, 0, 2, 0}, group) && group;
  }
  CHECK_EQ(joined, ArrivalBoard::kMaxGroups);
  ArrivalBoard::Group group;
  CHECK(!board_of_pairs->join({1, 0, 3, 0}, group));
}

// A group takes memory only for its ranks on this host.
void aGroupOf8192RanksHasRoomForAllSlots() {
  const auto board = ArrivalBoard::create(kToken, 8);
  std::vector<ArrivalBoard::Group> ranks(8);
  for (uint32_t rank = 0; rank < 8; ++rank) {
    CHECK(board->join({1, 8 * rank, 8192, 8 * rank}, ranks[rank]));
  }
  CHECK_EQ(ranks[0].slots(), ArrivalBoard::kSlots);
  CHECK(board->usedBytes() < (4u << 20));
  for (uint32_t rank = 0; rank < 8; ++rank) {
    ranks[rank].post(9, kBegin + rank);
  }
  ArrivalBoard::Last last;
  CHECK(ranks[0].last(9, kBegin, last) == State::kMissing);
  ranks[0].setLast(9, {kBegin + 500, 30, 4711, 0});
  CHECK(ranks[0].last(9, kBegin, last) == State::kKnown);
  CHECK_EQ(last.rank, 4711u);
  CHECK_EQ(last.at_ns, kBegin + 500);
  CHECK_EQ(last.clock_error_ns, 30u);
  // Rank 56 is on this host, so the time that rank 56 posted counts.
  ranks[0].setLast(9, {kBegin + 9, 30, 56, 3});
  CHECK(ranks[0].last(9, kBegin, last) == State::kPartial);
  CHECK_EQ(last.rank, 56u);
  CHECK_EQ(last.at_ns, kBegin + 7);
  ranks[0].setLast(9 + ArrivalBoard::kSlots, {kBegin + 9, 30, 1, 0});
  CHECK(ranks[0].last(9, kBegin, last) == State::kLost);
}

void aGroupOf8192RanksFitsOnOneHost() {
  const auto board = ArrivalBoard::create(kToken, 8192);
  std::vector<ArrivalBoard::Group> ranks(8192);
  for (uint32_t rank = 0; rank < 8192; ++rank) {
    CHECK(board->join({1, rank, 8192, rank}, ranks[rank]) && ranks[rank]);
  }
  CHECK(board->usedBytes() < (8u << 20));
  ArrivalBoard::Last last;
  for (uint32_t seq = 0; seq < 200; ++seq) {
    for (uint32_t rank = 0; rank < 8192; ++rank) {
      ranks[rank].post(seq, kBegin + (rank == 40 * seq ? 9'999 : rank));
    }
    CHECK(ranks[5].last(seq, kBegin, last) == State::kKnown);
    CHECK_EQ(last.rank, 40 * seq);
  }
}

void singleRanksOfOtherHostsAreFound() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group rank0;
  CHECK(board->join({1, 0, 4, 100}, rank0));
  rank0.post(0, kBegin, ArrivalBoard::Kind::kSingle);
  rank0.setLast(0, {kBegin + 900, 30, 103, 0});
  const Meaning reduce{Op::kReduce, 1, true};
  const Meaning gather{Op::kGather, 1, true};
  ArrivalBoard::Last last;
  const AskedAbout late{reduce, kBegin + 1'000};
  CHECK(rank0.last(0, kBegin, last, late) == State::kKnown);
  CHECK_EQ(last.rank, 103u);
  const AskedAbout early{reduce, kBegin + 600};
  CHECK(rank0.last(0, kBegin, last, early) == State::kMissing);
  // In a gather, rank 0 waits only for the root.
  rank0.setListed(0, {1, 101, kBegin + 200});
  CHECK(rank0.last(0, kBegin, last, {gather, kBegin + 600}) == State::kKnown);
  CHECK_EQ(last.rank, 101u);
  rank0.setListed(0, {2, 102, kBegin + 500});
  rank0.setListed(0, {3, 103, kBegin + 900});
  CHECK(rank0.last(0, kBegin, last, early) == State::kKnown);
  CHECK_EQ(last.rank, 102u);
  CHECK_EQ(last.at_ns, kBegin + 500);
  // In a group of more than 256 ranks, other hosts send only the root's
  // arrival.
  ArrivalBoard::Group large;
  CHECK(board->join({2, 0, 1000, 0}, large));
  large.post(0, kBegin, ArrivalBoard::Kind::kSingle);
  large.setLast(0, {kBegin + 900, 30, 103, 0});
  large.setListed(0, {1, 101, kBegin + 200});
  CHECK(large.last(0, kBegin, last, early) == State::kUnlisted);
  CHECK(large.last(0, kBegin, last, late) == State::kKnown);
  CHECK(large.last(0, kBegin, last, {gather, kBegin + 600}) == State::kKnown);
  CHECK_EQ(last.rank, 101u);
}

} // namespace

int main() {
  processesAsRanks();
  threadsAsRanks();
  filesThatAreNotThisBoardAreRejected();
  overwrittenArrivalsAreReportedAsLost();
  ofRanksThatArriveAtTheSameTimeTheLowestIsLast();
  arrivalTimesAreCorrectWhenCellsWrap();
  arrivalsAreFoundWhenSequenceNumbersWrap();
  // These tests have no threads and take long under the thread sanitizer.
  if (!check::kThreadSanitized) {
    theNumberOfGroupsIsBounded();
    aGroupOf8192RanksFitsOnOneHost();
  }
  aGroupOf8192RanksHasRoomForAllSlots();
  singleRanksOfOtherHostsAreFound();
  return check::report();
}
