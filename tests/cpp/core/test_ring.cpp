#include <sys/stat.h>

#include <thread>

#include "check.h"
#include "core/ring.h"
#include "trace_file.h"

using namespace commprof;
using trace_file::numbered;

namespace {

// Rings are never destroyed. The vector keeps them reachable for the leak
// checker.
Ring& makeRing(const std::string& path, uint64_t capacity, uint64_t session) {
  static auto& rings = *new std::vector<Ring*>();
  rings.push_back(new Ring(path, capacity, session));
  return *rings.back();
}

std::vector<uint64_t> drain(Ring& ring) {
  std::vector<uint64_t> numbers;
  ring.commit(ring.peek([&](const Record* records, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      numbers.push_back(records[i].op_id);
    }
  }));
  return numbers;
}

void wrapsAround() {
  Ring& ring = makeRing("", 8, 1);
  uint64_t next = 0;
  uint64_t expected = 0;
  // A run of 5 records begins at each of the 8 slots in turn.
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 5; ++i) {
      ring.push(numbered(next++));
    }
    const std::vector<uint64_t> numbers = drain(ring);
    CHECK_EQ(numbers.size(), 5u);
    for (const uint64_t number : numbers) {
      CHECK_EQ(number, expected++);
    }
  }
  CHECK_EQ(ring.header().dropped.load(), 0u);
  CHECK(drain(ring).empty());
}

void peekWithoutCommitKeepsRecords() {
  Ring& ring = makeRing("", 4, 1);
  ring.push(numbered(7));
  int calls = 0;
  ring.peek([&](const Record*, uint64_t) { ++calls; });
  ring.peek([&](const Record*, uint64_t) { ++calls; });
  CHECK_EQ(calls, 2);
  const uint64_t mark = ring.peek([](const Record*, uint64_t) {});
  ring.push(numbered(8));
  ring.commit(mark);
  CHECK_EQ(drain(ring).at(0), 8u);
}

void fullRingDropsTheNewest() {
  Ring& ring = makeRing("", 8, 1);
  for (uint64_t i = 0; i < 20; ++i) {
    ring.push(numbered(i));
  }
  CHECK_EQ(ring.header().dropped.load(), 12u);
  const std::vector<uint64_t> numbers = drain(ring);
  CHECK_EQ(numbers.size(), 8u);
  CHECK_EQ(numbers.front(), 0u);
  CHECK_EQ(numbers.back(), 7u);
  ring.push(numbered(20));
  CHECK_EQ(drain(ring).at(0), 20u);
  CHECK_EQ(ring.header().dropped.load(), 12u);
}

bool isFull(Ring& ring) {
  RingHeader& header = ring.header();
  return header.head.load() - header.tail.load() == header.capacity;
}

void oneThreadPushesWhileAnotherDrains(uint64_t count, bool waits_for_room) {
  Ring& ring = makeRing("", 1024, 1);
  std::atomic<bool> done{false};
  std::thread producer([&] {
    for (uint64_t i = 0; i < count; ++i) {
      while (waits_for_room && isFull(ring)) {
        std::this_thread::yield();
      }
      ring.push(numbered(i));
    }
    done = true;
  });
  uint64_t received = 0;
  uint64_t out_of_order = 0;
  uint64_t next = 0;
  for (bool last = false; !last;) {
    last = done;
    for (const uint64_t number : drain(ring)) {
      out_of_order += (waits_for_room ? number != next : number < next) ? 1 : 0;
      next = number + 1;
      ++received;
    }
  }
  producer.join();
  CHECK_EQ(out_of_order, 0u);
  CHECK_EQ(received + ring.header().dropped.load(), count);
  CHECK(!waits_for_room || received == count);
}

void fileOutlivesTheMapping(const trace_file::Directory& directory) {
  const std::string path = directory / "a.ring";
  Ring& ring = makeRing(path, 8, 42);
  CHECK(ring.fileBacked());
  for (uint64_t i = 0; i < 11; ++i) {
    ring.push(numbered(i));
    if (i == 3) {
      drain(ring);
    }
  }
  std::ifstream file(path, std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(file), {}};
  CHECK_EQ(data.size(), 256u + 8 * 64);
  CHECK(data.compare(0, 8, "CPRING01") == 0);
  uint64_t words[32];
  std::memcpy(words, data.data(), sizeof(words));
  CHECK_EQ(uint32_t(words[1]), 64u); // record_bytes
  CHECK_EQ(words[2], 8u); // capacity
  CHECK_EQ(words[3], 42u); // session
  CHECK_EQ(words[8], 11u); // head
  CHECK_EQ(words[16], 4u); // tail
  CHECK_EQ(words[24], 0u); // dropped
  uint64_t op_id = 0;
  std::memcpy(&op_id, &data[256 + (10 % 8) * 64 + 8], 8);
  CHECK_EQ(op_id, 10u);
}

void rebindMovesToAnEmptyFile(const trace_file::Directory& directory) {
  Ring& ring = makeRing(directory / "first.ring", 8, 1);
  for (uint64_t i = 0; i < 11; ++i) {
    ring.push(numbered(i));
  }
  const RingHeader* before = &ring.header();
  ring.rebind(directory / "second.ring", 2);
  CHECK(!std::filesystem::exists(directory / "first.ring"));
  CHECK(std::filesystem::exists(directory / "second.ring"));
  CHECK_EQ(&ring.header(), before);
  CHECK_EQ(ring.header().session.load(), 2u);
  CHECK_EQ(ring.header().dropped.load(), 0u);
  CHECK(drain(ring).empty());
  for (uint64_t i = 0; i < 8; ++i) {
    ring.push(numbered(i));
  }
  CHECK_EQ(drain(ring).size(), 8u);
  {
    const trace_file::FullDisk full(300);
    ring.rebind(directory / "third.ring", 3);
  }
  CHECK(!ring.fileBacked());
  CHECK_EQ(ring.header().session.load(), 3u);
  ring.push(numbered(9));
  CHECK_EQ(drain(ring).at(0), 9u);
  ring.rebind(directory / "fourth.ring", 4);
  CHECK(ring.fileBacked());
  ring.unlinkFile();
  CHECK(!std::filesystem::exists(directory / "fourth.ring"));
  ring.push(numbered(10));
  CHECK_EQ(drain(ring).at(0), 10u);
}

void rebindWhileAThreadPushes(const trace_file::Directory& directory) {
  Ring& ring = makeRing(directory / "moving.ring", 64, 1);
  std::atomic<bool> done{false};
  std::thread pusher([&] {
    for (uint64_t i = 0; !done; ++i) {
      ring.push(numbered(i));
    }
  });
  for (uint64_t session = 2; session < 200; ++session) {
    ring.rebind(directory / "moving.ring", session);
    CHECK(drain(ring).size() <= 64);
  }
  done = true;
  pusher.join();
}

void noFileGivesPrivateMemory(const trace_file::Directory& directory) {
  CHECK(!makeRing(directory / "missing/a.ring", 8, 1).fileBacked());
  // An earlier test has made a.ring.
  CHECK(!makeRing(directory / "a.ring", 8, 1).fileBacked());
  {
    const trace_file::FullDisk full(300);
    Ring& ring = makeRing(directory / "full.ring", 8, 1);
    CHECK(!ring.fileBacked());
    ring.push(numbered(1));
    CHECK_EQ(drain(ring).size(), 1u);
  }
  CHECK(!std::filesystem::exists(directory / "full.ring"));
}

} // namespace

int main() {
  const trace_file::Directory directory;
  wrapsAround();
  peekWithoutCommitKeepsRecords();
  fullRingDropsTheNewest();
  oneThreadPushesWhileAnotherDrains(1'000'000, /*waits_for_room=*/true);
  oneThreadPushesWhileAnotherDrains(1'000'000, /*waits_for_room=*/false);
  fileOutlivesTheMapping(directory);
  rebindMovesToAnEmptyFile(directory);
  rebindWhileAThreadPushes(directory);
  noFileGivesPrivateMemory(directory);
  return check::report();
}
