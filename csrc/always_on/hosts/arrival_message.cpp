#include "always_on/hosts/arrival_message.h"

#include <algorithm>
#include <cstring>

namespace commprof {

namespace {

// Little-endian, as the trace.
struct MessageHeader {
  static constexpr uint32_t kMagic = 0x56525241; // "ARRV"
  static constexpr uint16_t kVersion = 1;
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t runs = 0;
  uint64_t token = 0;
  uint32_t host = 0;
  uint32_t error_ns = 0;
};
static_assert(sizeof(MessageHeader) == 24);

struct RunHeader {
  uint64_t key = 0;
  uint64_t first_ns = 0;
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t global_rank = 0;
  uint32_t first_seq = 0;
  uint32_t count = 0; // of times, with the first
  uint32_t bytes = 0; // size of the differences
};
static_assert(sizeof(RunHeader) == 40);

constexpr size_t kMostDifferenceBytes = 10;
constexpr uint32_t kMostRanks = 1 << 24; // of a group, and of a job

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

// Advances `at`; returns false if the number does not end before `end`.
bool readDifference(
    const char* data,
    size_t& at,
    size_t end,
    int64_t& difference) noexcept {
  uint64_t read = 0;
  for (unsigned shift = 0; at < end && shift < 64; shift += 7) {
    const auto byte = uint8_t(data[at++]);
    read |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) {
      difference = int64_t(read >> 1) ^ -int64_t(read & 1);
      return true;
    }
  }
  return false;
}

bool isPossible(const RunHeader& run) noexcept {
  return run.key != 0 && run.size > 1 && run.size < kMostRanks &&
      run.rank < run.size && run.global_rank < kMostRanks && run.count > 0 &&
      run.count - 1 <= run.bytes && run.count - 1 <= UINT32_MAX - run.first_seq;
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
  const size_t end = at + header.bytes;
  run.member = {header.key, header.rank, header.size, header.global_rank};
  run.first_seq = header.first_seq;
  run.common_ns = {header.first_ns};
  while (run.common_ns.size() < header.count) {
    int64_t difference = 0;
    if (!readDifference(data, at, end, difference)) {
      return false;
    }
    run.common_ns.push_back(run.common_ns.back() + uint64_t(difference));
  }
  return at == end;
}

} // namespace

bool ArrivalPacker::add(
    const ArrivalBoard::Member& member,
    uint32_t seq,
    uint64_t common_ns,
    uint64_t error_ns) {
  if (continues(member, seq)) {
    Datagram& datagram = datagrams_.back();
    const size_t before = datagram.size();
    appendDifference(datagram, int64_t(common_ns - last_ns_));
    auto run = readAt<RunHeader>(datagram.data(), run_at_);
    ++run.count;
    run.bytes += uint32_t(datagram.size() - before);
    writeAt(datagram, run_at_, run);
  } else if (!beginRun(member, seq, common_ns)) {
    return false;
  }
  next_seq_ = seq + 1;
  last_ns_ = common_ns;
  auto header = readAt<MessageHeader>(datagrams_.back().data(), 0);
  header.error_ns = uint32_t(
      std::max(
          uint64_t(header.error_ns), std::min<uint64_t>(error_ns, UINT32_MAX)));
  writeAt(datagrams_.back(), 0, header);
  return true;
}

bool ArrivalPacker::continues(const ArrivalBoard::Member& member, uint32_t seq)
    const {
  return run_at_ != 0 && member.key == member_.key &&
      member.rank == member_.rank && seq == next_seq_ && seq != 0 &&
      datagrams_.back().size() + kMostDifferenceBytes <= kMaxBytes;
}

bool ArrivalPacker::beginRun(
    const ArrivalBoard::Member& member,
    uint32_t seq,
    uint64_t common_ns) {
  if (datagrams_.empty() ||
      datagrams_.back().size() + sizeof(RunHeader) > kMaxBytes) {
    if (datagrams_.size() == kMaxDatagrams) {
      return false;
    }
    datagrams_.emplace_back().reserve(kMaxBytes);
    MessageHeader header;
    header.host = host_;
    datagrams_.back().resize(sizeof(header));
    writeAt(datagrams_.back(), 0, header);
  }
  Datagram& datagram = datagrams_.back();
  RunHeader run;
  run.key = member.key;
  run.first_ns = common_ns;
  run.rank = member.rank;
  run.size = member.size;
  run.global_rank = member.global_rank;
  run.first_seq = seq;
  run.count = 1;
  run_at_ = datagram.size();
  member_ = member;
  datagram.resize(run_at_ + sizeof(run));
  writeAt(datagram, run_at_, run);
  auto header = readAt<MessageHeader>(datagram.data(), 0);
  ++header.runs;
  writeAt(datagram, 0, header);
  return true;
}

void setToken(Datagram& datagram, uint64_t token) noexcept {
  auto header = readAt<MessageHeader>(datagram.data(), 0);
  header.token = token;
  writeAt(datagram, 0, header);
}

std::optional<ArrivalMessage> readArrivals(
    const char* data,
    size_t size,
    uint64_t token) {
  if (size < sizeof(MessageHeader) || size > ArrivalPacker::kMaxBytes) {
    return std::nullopt;
  }
  const auto header = readAt<MessageHeader>(data, 0);
  if (header.magic != MessageHeader::kMagic || header.token != token ||
      header.version != MessageHeader::kVersion) {
    return std::nullopt;
  }
  ArrivalMessage message;
  message.host = header.host;
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
