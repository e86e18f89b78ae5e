// Tests datagrams between hosts: content is preserved, damage is rejected.
#include "always_on/hosts/arrival_message.h"

#include <cstring>

#include "check.h"

using namespace commprof;

namespace {

constexpr uint64_t kToken = 4711;
constexpr uint64_t kBegin = 5'000'000'000'000;
const ArrivalBoard::Member kRank{77, 3, 8, 19};

std::optional<ArrivalMessage> read(Datagram datagram) {
  return readArrivals(datagram.data(), datagram.size(), kToken);
}

// Datagram with two runs of one rank, one of another; times go back and jump.
Datagram packed() {
  ArrivalPacker packer(2);
  const uint64_t times[] = {0, 1'000, 900, 3'000'000'000, 3'000'000'001};
  uint32_t seq = 41;
  for (const uint64_t time : times) {
    CHECK(packer.add(kRank, seq++, kBegin + time, 50));
  }
  CHECK(packer.add(kRank, 99, kBegin, 70)); // 46 to 98 are missing
  CHECK(packer.add({77, 4, 8, 20}, 100, kBegin + 5, 60));
  CHECK_EQ(packer.datagrams().size(), 1u);
  Datagram datagram = packer.datagrams()[0];
  setToken(datagram, kToken);
  return datagram;
}

void packedArrivalsAreReadBack() {
  const auto message = read(packed());
  CHECK(message);
  CHECK_EQ(message->host, 2u);
  CHECK_EQ(message->error_ns, 70u); // the largest
  CHECK_EQ(message->runs.size(), 3u);
  const ArrivalRun& first = message->runs[0];
  CHECK_EQ(first.member.key, 77u);
  CHECK_EQ(first.member.rank, 3u);
  CHECK_EQ(first.member.size, 8u);
  CHECK_EQ(first.member.global_rank, 19u);
  CHECK_EQ(first.first_seq, 41u);
  const std::vector<uint64_t> times{
      kBegin,
      kBegin + 1'000,
      kBegin + 900,
      kBegin + 3'000'000'000,
      kBegin + 3'000'000'001};
  CHECK(first.common_ns == times);
  CHECK_EQ(message->runs[1].first_seq, 99u);
  CHECK_EQ(message->runs[1].common_ns.size(), 1u);
  CHECK_EQ(message->runs[2].member.global_rank, 20u);
  CHECK_EQ(message->runs[2].common_ns[0], kBegin + 5);
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
  // Magic, version and token are the first 16 bytes, except the count of runs.
  for (const size_t at : {0, 3, 4, 5, 6, 7, 8, 15}) {
    Datagram bad = good;
    bad[at] ^= 1;
    CHECK(!read(bad));
  }
}

// Fields of the first run, which begins at byte 24.
void impossibleRunsAreRejected() {
  const auto isReadWith = [](size_t at, auto value) {
    Datagram bad = packed();
    std::memcpy(bad.data() + 24 + at, &value, sizeof(value));
    return read(bad).has_value();
  };
  CHECK(isReadWith(8, uint64_t(1))); // another time is possible
  CHECK(!isReadWith(0, uint64_t(0))); // no group
  CHECK(!isReadWith(16, uint32_t(8))); // rank 8 of 8
  CHECK(!isReadWith(20, uint32_t(1))); // a group of one
  CHECK(!isReadWith(20, UINT32_MAX));
  CHECK(!isReadWith(24, UINT32_MAX)); // global rank
  CHECK(!isReadWith(28, UINT32_MAX - 3)); // numbers end before the run does
  CHECK(!isReadWith(32, uint32_t(0))); // none
  CHECK(!isReadWith(32, UINT32_MAX));
  CHECK(!isReadWith(32, uint32_t(4)));
  CHECK(!isReadWith(36, uint32_t(0)));
  CHECK(!isReadWith(36, UINT32_MAX));
}

// For the sanitizers: damaged datagrams cause no out-of-bounds reads.
void damagedDatagramsCauseNoBadReads() {
  const Datagram good = packed();
  for (size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      Datagram bad = good;
      bad[at] = char(value);
      if (const auto message = read(bad)) {
        for (const ArrivalRun& run : message->runs) {
          CHECK(!run.common_ns.empty() && run.common_ns.size() < good.size());
        }
      }
    }
  }
}

void sizeAndNumberOfDatagramsAreBounded() {
  ArrivalPacker packer(1);
  uint32_t added = 0;
  while (packer.add(kRank, added, kBegin + added * 1'000'000ull, 1)) {
    ++added;
  }
  CHECK_EQ(packer.datagrams().size(), ArrivalPacker::kMaxDatagrams);
  uint32_t found = 0;
  for (Datagram& datagram : packer.datagrams()) {
    CHECK(datagram.size() <= ArrivalPacker::kMaxBytes);
    setToken(datagram, kToken);
    const auto message = read(datagram);
    CHECK(message);
    for (const ArrivalRun& run : message->runs) {
      CHECK_EQ(run.first_seq, found);
      CHECK_EQ(
          run.common_ns.back(),
          kBegin + (found + run.common_ns.size() - 1) * 1'000'000ull);
      found += uint32_t(run.common_ns.size());
    }
  }
  CHECK_EQ(found, added);
  // 2,000,000 as a zigzag number of 1 ms takes three bytes.
  CHECK(added > 64 * 370);
}

} // namespace

int main() {
  packedArrivalsAreReadBack();
  foreignAndDamagedDatagramsAreRejected();
  impossibleRunsAreRejected();
  damagedDatagramsCauseNoBadReads();
  sizeAndNumberOfDatagramsAreBounded();
  return check::report();
}
