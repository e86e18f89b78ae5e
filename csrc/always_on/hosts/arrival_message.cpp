#include "always_on/hosts/arrival_message.h"

#include <algorithm>
#include <cstring>

namespace commprof {

namespace {

// All fields are little-endian, as in a trace.
struct DatagramHeader {
  static constexpr uint32_t kMagic = 0x56525241; // "ARRV"
  static constexpr uint16_t kVersion = 2;
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t runs = 0;
  uint64_t token = 0;
  uint64_t own_token = 0;
  uint32_t host = 0;
  uint32_t hosts = 0;
  uint32_t error_ns = 0;
  uint32_t goes_down = 0;
};
static_assert(sizeof(DatagramHeader) == 40);

struct RunHeader {
  uint64_t key = 0;
  uint64_t first_ns = 0;
  uint32_t size = 0;
  uint32_t first_seq = 0;
  uint16_t count = 0;
  uint16_t bytes = 0; // bytes that follow
  uint32_t is_listed = 0; // 1: one collective, with arrivals of single ranks
};
static_assert(sizeof(RunHeader) == 32);

constexpr size_t kMostNumberBytes = 10;
constexpr size_t kNumbersPerCollective = 3;
constexpr uint32_t kMostRanks = 1 << 24; // in a group, and in a job

template <class T>
T readAt(const char* data, size_t at) noexcept {
  T value;
  std::memcpy(&value, data + at, sizeof(T));
  return value;
}

template <class T>
void writeAt(Datagram& datagram, size_t at, const T& value) noexcept {
  std::memcpy(datagram.data() + at, &value, sizeof(T));
}

// Zigzag and LEB128, as Protocol Buffers encode a sint64.
void appendDifference(Datagram& datagram, int64_t difference) {
  uint64_t rest = uint64_t(difference) << 1 ^ uint64_t(difference >> 63);
  for (; rest >= 0x80; rest >>= 7) {
    datagram.push_back(char(rest | 0x80));
  }
  datagram.push_back(char(rest));
}

struct NumberReader {
  const char* data;
  size_t at;
  size_t end;
  bool good = true; // false once a number was incomplete or out of range

  int64_t difference() noexcept {
    uint64_t read = 0;
    for (unsigned shift = 0; at < end && shift < 64; shift += 7) {
      const auto byte = uint8_t(data[at++]);
      read |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return int64_t(read >> 1) ^ -int64_t(read & 1);
      }
    }
    good = false;
    return 0;
  }
  // Reads a number that is stored as its difference from `before`. The number
  // must be below `limit`.
  uint32_t after(uint32_t before, uint32_t limit) noexcept {
    const uint64_t number = before + uint64_t(difference());
    good = good && number < limit;
    return uint32_t(number);
  }
};

bool isPossible(const RunHeader& run) noexcept {
  return run.key != 0 && run.size > 1 && run.size < kMostRanks &&
      run.count > 0 && run.count <= run.bytes &&
      (run.is_listed == 0 || run.count == 1);
}

bool readListed(NumberReader& numbers, uint32_t size, KnownArrivals& known) {
  const uint32_t count = numbers.after(0, ArrivalPacker::kMostListed + 1);
  ArrivalBoard::Arrival before{0, 0, known.last_ns};
  for (uint32_t i = 0; numbers.good && i < count; ++i) {
    before.rank = numbers.after(before.rank, size);
    before.global_rank = numbers.after(before.global_rank, kMostRanks);
    before.at_ns += uint64_t(numbers.difference());
    known.listed.push_back(before);
  }
  return numbers.good;
}

bool readRun(const char* data, size_t& at, size_t size, ArrivalRun& run) {
  if (size - at < sizeof(RunHeader)) {
    return false;
  }
  const auto header = readAt<RunHeader>(data, at);
  at += sizeof(RunHeader);
  if (!isPossible(header) || header.bytes > size - at) {
    return false;
  }
  NumberReader numbers{data, at, at + header.bytes};
  run.key = header.key;
  run.size = header.size;
  KnownArrivals before{header.first_seq - 1, header.size, header.first_ns, 0};
  while (run.collectives.size() < header.count) {
    ++before.seq;
    before.last_ns += uint64_t(numbers.difference());
    before.last_rank = numbers.after(before.last_rank, kMostRanks);
    before.present = numbers.after(before.present, header.size + 1);
    run.collectives.push_back(before);
    if (!numbers.good || before.present == 0) {
      return false;
    }
  }
  if (header.is_listed != 0 &&
      !readListed(numbers, header.size, run.collectives.back())) {
    return false;
  }
  at = numbers.at;
  return at == numbers.end;
}

} // namespace

bool ArrivalPacker::add(
    uint64_t key,
    uint32_t size,
    const KnownArrivals& known,
    uint64_t error_ns) {
  size_t first = 0;
  do {
    if (!addPart(key, size, known, first, error_ns)) {
      return false;
    }
    first += kMostListed;
  } while (first < known.listed.size());
  return true;
}

bool ArrivalPacker::addPart(
    uint64_t key,
    uint32_t size,
    const KnownArrivals& known,
    size_t first_listed,
    uint64_t error_ns) {
  const size_t listed =
      std::min(known.listed.size() - first_listed, kMostListed);
  const bool continues = listed == 0 && run_at_ != 0 && key == key_ &&
      known.seq == before_.seq + 1 && before_.listed.empty() &&
      datagrams_.back().size() + kNumbersPerCollective * kMostNumberBytes <=
          kMaxBytes;
  if (!continues) {
    // A listed arrival takes at most 18 bytes: 4 for each of two ranks, and 10
    // for the time.
    const size_t needed = sizeof(RunHeader) +
        (kNumbersPerCollective + 1) * kMostNumberBytes + listed * 18;
    if ((datagrams_.empty() || datagrams_.back().size() + needed > kMaxBytes) &&
        !beginDatagram()) {
      return false;
    }
    Datagram& datagram = datagrams_.back();
    RunHeader run;
    run.key = key;
    run.first_ns = known.last_ns;
    run.size = size;
    run.first_seq = known.seq;
    run.is_listed = listed > 0;
    run_at_ = datagram.size();
    datagram.resize(run_at_ + sizeof(run));
    writeAt(datagram, run_at_, run);
    auto header = readAt<DatagramHeader>(datagram.data(), 0);
    ++header.runs;
    writeAt(datagram, 0, header);
    key_ = key;
    before_ = {known.seq - 1, size, known.last_ns, 0, {}};
  }
  Datagram& datagram = datagrams_.back();
  const size_t begin = datagram.size();
  appendDifference(datagram, int64_t(known.last_ns - before_.last_ns));
  appendDifference(datagram, int64_t(known.last_rank) - before_.last_rank);
  appendDifference(datagram, int64_t(known.present) - before_.present);
  if (listed > 0) {
    appendDifference(datagram, int64_t(listed));
    ArrivalBoard::Arrival before{0, 0, known.last_ns};
    for (size_t i = first_listed; i < first_listed + listed; ++i) {
      const ArrivalBoard::Arrival& arrival = known.listed[i];
      appendDifference(datagram, int64_t(arrival.rank) - before.rank);
      appendDifference(
          datagram, int64_t(arrival.global_rank) - before.global_rank);
      appendDifference(datagram, int64_t(arrival.at_ns - before.at_ns));
      before = arrival;
    }
  }
  auto run = readAt<RunHeader>(datagram.data(), run_at_);
  ++run.count;
  run.bytes += uint16_t(datagram.size() - begin);
  writeAt(datagram, run_at_, run);
  before_ = {known.seq, known.present, known.last_ns, known.last_rank, {}};
  run_at_ = listed > 0 ? 0 : run_at_;
  auto header = readAt<DatagramHeader>(datagram.data(), 0);
  header.error_ns = uint32_t(
      std::max(
          uint64_t(header.error_ns), std::min<uint64_t>(error_ns, UINT32_MAX)));
  writeAt(datagram, 0, header);
  return true;
}

bool ArrivalPacker::beginDatagram() {
  if (datagrams_.size() == kMaxDatagrams) {
    return false;
  }
  datagrams_.emplace_back().reserve(kMaxBytes);
  DatagramHeader header;
  header.token = header_.token;
  header.own_token = header_.own_token;
  header.host = header_.host;
  header.hosts = header_.hosts;
  header.goes_down = header_.goes_down;
  datagrams_.back().resize(sizeof(header));
  writeAt(datagrams_.back(), 0, header);
  return true;
}

void ArrivalPacker::addEmpty() {
  if (datagrams_.empty()) {
    beginDatagram();
  }
}

std::optional<ArrivalMessage> readArrivals(
    const char* data,
    size_t size,
    uint64_t token) {
  if (size < sizeof(DatagramHeader) || size > ArrivalPacker::kMaxBytes) {
    return std::nullopt;
  }
  const auto header = readAt<DatagramHeader>(data, 0);
  if (header.magic != DatagramHeader::kMagic || header.token != token ||
      header.version != DatagramHeader::kVersion) {
    return std::nullopt;
  }
  ArrivalMessage message;
  message.header = {
      header.token,
      header.own_token,
      header.host,
      header.hosts,
      header.goes_down != 0};
  message.error_ns = header.error_ns;
  size_t at = sizeof(header);
  for (uint32_t i = 0; i < header.runs; ++i) {
    if (!readRun(data, at, size, message.runs.emplace_back())) {
      return std::nullopt;
    }
  }
  return at == size ? std::optional(std::move(message)) : std::nullopt;
}

} // namespace commprof
