// Tests the board on which ranks write their arrivals, with threads and
// processes as ranks, and that lost arrivals are detected.
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

// Time at which a rank arrives at collective `seq`, after kBegin + seq us; the
// last one is rank seq % ranks.
uint64_t arrival(uint32_t rank, uint32_t seq, uint32_t ranks) {
  return kBegin + seq * 1'000 + (rank == seq % ranks ? 900 : rank * 10);
}

ArrivalBoard::Group joined(ArrivalBoard& board, uint32_t rank, uint32_t ranks) {
  ArrivalBoard::Group group;
  while (!group) {
    CHECK(board.join({77, rank, ranks, 100 + rank}, group));
  }
  return group;
}

// Acts like a helper thread; returns how often the last arrival was correct.
uint32_t runRank(
    ArrivalBoard& board,
    uint32_t rank,
    uint32_t ranks,
    uint32_t count) {
  ArrivalBoard::Group group = joined(board, rank, ranks);
  uint32_t known = 0;
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
    known += state == State::kKnown && last.rank == 100 + seq % ranks &&
        last.at_ns == arrival(seq % ranks, seq, ranks);
  }
  return known;
}

void threadsAsRanks() {
  const auto board = ArrivalBoard::create(kToken);
  const uint32_t ranks = 4;
  const uint32_t count = ArrivalBoard::kSlots + 1'000; // overwrites some
  std::vector<uint32_t> known(ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(
        [&, rank] { known[rank] = runRank(*board, rank, ranks, count); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const uint32_t one : known) {
    CHECK_EQ(one, count);
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
      const auto same = ArrivalBoard::open(path, kToken);
      _exit(runRank(*same, rank, 3, 5'000) == 5'000 ? 0 : 1);
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

void strangersAreRefused() {
  const auto board = ArrivalBoard::create(kToken);
  const std::string here = "/proc/" + std::to_string(getpid()) + "/fd/";
  CHECK_THROWS(
      std::invalid_argument,
      ArrivalBoard::open(here + std::to_string(board->fd()), kToken + 1));
  CHECK_THROWS(
      std::invalid_argument, ArrivalBoard::open("/proc/self/status", kToken));
  CHECK_THROWS(std::invalid_argument, ArrivalBoard::open("/dev/null", kToken));
  CHECK_THROWS(std::system_error, ArrivalBoard::open(here + "9999", kToken));
}

void whatIsWrittenOverIsLost() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group one = joined(*board, 0, 2);
  ArrivalBoard::Group other = joined(*board, 1, 2);
  ArrivalBoard::Last last;
  one.post(5, 100);
  CHECK(one.last(5, 100, last) == State::kMissing);
  other.post(5, 90);
  CHECK(one.last(5, 100, last) == State::kKnown);
  CHECK_EQ(last.at_ns, 100u);
  CHECK_EQ(last.rank, 100u);
  other.post(5 + ArrivalBoard::kSlots, 200);
  CHECK(one.last(5, 100, last) == State::kLost);
  CHECK(one.last(5 + ArrivalBoard::kSlots, 100, last) == State::kMissing);
}

// Cells hold 45 bits of nanoseconds and wrap.
void timesGoOnWhereCellsBeginAnew() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group one = joined(*board, 0, 2);
  ArrivalBoard::Group other = joined(*board, 1, 2);
  const uint64_t turn = uint64_t(3) << 45;
  one.post(UINT32_MAX, turn - 1'000);
  other.post(UINT32_MAX, turn + 500);
  ArrivalBoard::Last last;
  CHECK(one.last(UINT32_MAX, turn - 1'000, last) == State::kKnown);
  CHECK_EQ(last.at_ns, turn + 500);
  CHECK(other.last(UINT32_MAX, turn + 500, last) == State::kKnown);
  CHECK_EQ(last.at_ns, turn + 500);
}

// A group's sequence numbers wrap after 2**32 collectives.
void numbersGoOnAfterTheLast() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group one = joined(*board, 0, 2);
  ArrivalBoard::Group other = joined(*board, 1, 2);
  ArrivalBoard::Last last;
  uint64_t at_ns = kBegin;
  uint32_t seq = UINT32_MAX - ArrivalBoard::kSlots;
  for (uint32_t i = 0; i < 3 * ArrivalBoard::kSlots; ++i, ++seq) {
    at_ns += 1'000;
    one.post(seq, at_ns);
    CHECK(one.last(seq, at_ns, last) == State::kMissing);
    other.post(seq, at_ns + 10);
    CHECK(one.last(seq, at_ns, last) == State::kKnown);
    CHECK_EQ(last.rank, 101u);
    CHECK_EQ(last.at_ns, at_ns + 10);
    CHECK_EQ(uint32_t(one.end(0)), seq + 1);
  }
  // Overwritten by a collective after the wrap-around.
  CHECK(one.last(UINT32_MAX, at_ns, last) == State::kLost);
  uint64_t issue_ns = 0;
  CHECK(!one.find(0, UINT32_MAX, at_ns, issue_ns));
  CHECK(one.find(0, seq - 1, at_ns, issue_ns));
  const uint64_t end = one.end(0);
  one.post(UINT32_MAX - 5, at_ns); // a late cell does not move the end back
  CHECK_EQ(one.end(0), end);
}

void roomHasABound() {
  const auto board = ArrivalBoard::create(kToken);
  uint32_t joined = 0;
  for (uint64_t key = 1; key <= 2 * ArrivalBoard::kMaxGroups; ++key) {
    ArrivalBoard::Group group;
    joined += board->join({key, 0, 16, 0}, group) && group;
  }
  // 16 ranks take 2 MiB; the directory of groups takes the rest of the 32nd.
  CHECK_EQ(joined, ArrivalBoard::kBytes / (2 << 20) - 1);
  const auto small = ArrivalBoard::create(kToken);
  joined = 0;
  for (uint64_t key = 1; key <= 2 * ArrivalBoard::kMaxGroups; ++key) {
    ArrivalBoard::Group group;
    joined += small->join({key, 0, 2, 0}, group) && group;
  }
  CHECK_EQ(joined, ArrivalBoard::kMaxGroups);
  ArrivalBoard::Group group; // joined with a different size
  CHECK(!small->join({1, 0, 3, 0}, group));
}

void aGroupTooLargeLeavesRoomForOthers() {
  const auto board = ArrivalBoard::create(kToken);
  ArrivalBoard::Group group;
  CHECK(!board->join({1, 0, 512, 0}, group));
  CHECK(!board->join({1, 1, 512, 1}, group));
  CHECK(board->join({2, 0, 8, 0}, group) && group);
}

} // namespace

int main() {
  processesAsRanks();
  threadsAsRanks();
  strangersAreRefused();
  whatIsWrittenOverIsLost();
  timesGoOnWhereCellsBeginAnew();
  numbersGoOnAfterTheLast();
  roomHasABound();
  aGroupTooLargeLeavesRoomForOthers();
  return check::report();
}
