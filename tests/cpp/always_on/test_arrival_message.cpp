#include "always_on/hosts/arrival_message.h"

#include <cstring>

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kToken = 4711;
constexpr uint64_t kKey = 77;
constexpr uint32_t kSize = 4096;
constexpr uint64_t kBegin = 5'000'000'000'000;
constexpr ArrivalHeader kHeader{kToken, 4712, 2, 17, true};

std::optional<ArrivalMessage> read(const Datagram& datagram) {
  return readArrivals(datagram.data(), datagram.size(), kToken);
}

KnownArrivals known(uint32_t seq, uint64_t after_ns, uint32_t rank) {
  return {seq, kSize - seq % 3, kBegin + after_ns, rank, {}};
}

Datagram packed() {
  ArrivalPacker packer(kHeader);
  const uint64_t times[] = {0, 1'000, 900, 3'000'000'000, 3'000'000'001};
  uint32_t seq = 41;
  for (const uint64_t time : times) {
    CHECK(packer.add(kKey, kSize, known(seq, time, 4000 - seq), 50));
    ++seq;
  }
  // The gap between sequence numbers 45 and 99 begins a new run.
  CHECK(packer.add(kKey, kSize, known(99, 0, 1), 70));
  CHECK(packer.add(
      78,
      8,
      {100, 8, kBegin + 5, 20, {{3, 19, kBegin - 7}, {1, 20, kBegin}}},
      60));
  CHECK_EQ(packer.datagrams().size(), 1u);
  return packer.datagrams()[0];
}

void packedArrivalsAreReadBack() {
  const auto message = read(packed());
  CHECK(message);
  CHECK_EQ(message->header.host, 2u);
  CHECK_EQ(message->header.hosts, 17u);
  CHECK_EQ(message->header.own_token, 4712u);
  CHECK(message->header.goes_down);
  CHECK_EQ(message->error_ns, 70u);
  CHECK_EQ(message->runs.size(), 3u);
  const ArrivalRun& first = message->runs[0];
  CHECK_EQ(first.key, kKey);
  CHECK_EQ(first.size, kSize);
  CHECK_EQ(first.collectives.size(), 5u);
  CHECK_EQ(first.collectives[2].seq, 43u);
  CHECK_EQ(first.collectives[2].last_ns, kBegin + 900);
  CHECK_EQ(first.collectives[3].last_ns, kBegin + 3'000'000'000);
  CHECK_EQ(first.collectives[4].last_rank, 4000u - 45);
  CHECK_EQ(first.collectives[4].present, kSize);
  CHECK_EQ(first.collectives[1].present, kSize);
  CHECK_EQ(first.collectives[3].present, kSize - 2);
  CHECK_EQ(message->runs[1].collectives[0].seq, 99u);
  const KnownArrivals& single = message->runs[2].collectives[0];
  CHECK_EQ(single.seq, 100u);
  CHECK_EQ(single.listed.size(), 2u);
  CHECK_EQ(single.listed[0].rank, 3u);
  CHECK_EQ(single.listed[0].global_rank, 19u);
  CHECK_EQ(single.listed[0].at_ns, kBegin - 7);
  CHECK_EQ(single.listed[1].rank, 1u);
  CHECK_EQ(single.listed[1].at_ns, kBegin);
}

void manySingleRanksTakeSeveralRuns() {
  ArrivalPacker packer(kHeader);
  KnownArrivals all{7, 256, kBegin, 1, {}};
  for (uint32_t rank = 0; rank < 256; ++rank) {
    all.listed.push_back(
        {rank, (1u << 24) - 1 - rank * 7919, kBegin + rank * 987'654'321ull});
  }
  CHECK(packer.add(kKey, 256, all, 0));
  uint32_t ranks = 0;
  for (const Datagram& datagram : packer.datagrams()) {
    CHECK(datagram.size() <= ArrivalPacker::kMaxBytes);
    const auto message = read(datagram);
    CHECK(message);
    for (const ArrivalRun& run : message->runs) {
      CHECK_EQ(run.collectives[0].present, 256u);
      for (const auto& arrival : run.collectives[0].listed) {
        CHECK_EQ(arrival.rank, ranks);
        CHECK_EQ(arrival.at_ns, all.listed[ranks].at_ns);
        ++ranks;
      }
    }
  }
  CHECK_EQ(ranks, 256u);
}

void aSignOfLifeHasNoRuns() {
  ArrivalPacker packer(kHeader);
  packer.addEmpty();
  packer.addEmpty();
  CHECK_EQ(packer.datagrams().size(), 1u);
  const auto message = read(packer.datagrams()[0]);
  CHECK(message && message->runs.empty());
  CHECK_EQ(message->header.hosts, 17u);
}

void foreignAndDamagedDatagramsAreRejected() {
  const Datagram good = packed();
  CHECK(!readArrivals(good.data(), good.size(), kToken + 1));
  for (size_t size = 0; size < good.size(); ++size) {
    CHECK(!readArrivals(good.data(), size, kToken));
  }
  Datagram longer = good;
  longer.push_back(0);
  CHECK(!read(longer));
  longer.resize(ArrivalPacker::kMaxBytes + 1);
  CHECK(!read(longer));
  // The first 16 bytes hold the magic, the version, the number of runs and the
  // token.
  for (size_t at = 0; at < 16; ++at) {
    Datagram bad = good;
    bad[at] ^= 1;
    CHECK(!read(bad));
  }
}

// Overwrites the field at offset `at` of the first run, which begins at byte 40
// of the datagram.
template <class T>
bool acceptsRunWith(size_t at, T value) {
  Datagram datagram = packed();
  std::memcpy(datagram.data() + 40 + at, &value, sizeof(value));
  return read(datagram).has_value();
}

void impossibleRunsAreRejected() {
  constexpr size_t kKeyAt = 0;
  constexpr size_t kSizeAt = 16;
  constexpr size_t kCountAt = 24;
  constexpr size_t kBytesAt = 26;
  constexpr size_t kIsListedAt = 28;
  CHECK(acceptsRunWith(kSizeAt, kSize + 1));
  CHECK(!acceptsRunWith(kKeyAt, uint64_t(0)));
  CHECK(!acceptsRunWith(kSizeAt, uint32_t(1)));
  CHECK(!acceptsRunWith(kSizeAt, uint32_t(1) << 24));
  CHECK(!acceptsRunWith(kCountAt, uint16_t(0)));
  CHECK(!acceptsRunWith(kCountAt, uint16_t(4)));
  CHECK(!acceptsRunWith(kCountAt, uint16_t(6)));
  CHECK(!acceptsRunWith(kBytesAt, uint16_t(1)));
  CHECK(!acceptsRunWith(kBytesAt, uint16_t(0xffff)));
  CHECK(!acceptsRunWith(kIsListedAt, uint32_t(1)));
}

void fullPackersRefuse() {
  ArrivalPacker packer(kHeader);
  uint32_t added = 0;
  while (packer.add(kKey, kSize, known(2 * added, added, 0), 0)) {
    ++added;
  }
  CHECK_EQ(packer.datagrams().size(), ArrivalPacker::kMaxDatagrams);
  uint32_t read_back = 0;
  for (const Datagram& datagram : packer.datagrams()) {
    CHECK(datagram.size() <= ArrivalPacker::kMaxBytes);
    const auto message = read(datagram);
    CHECK(message);
    read_back += uint32_t(message->runs.size());
  }
  CHECK_EQ(read_back, added);
}

} // namespace

int main() {
  packedArrivalsAreReadBack();
  manySingleRanksTakeSeveralRuns();
  aSignOfLifeHasNoRuns();
  foreignAndDamagedDatagramsAreRejected();
  impossibleRunsAreRejected();
  fullPackersRefuse();
  return check::report();
}
