#include "tune/compress/exchange/split_gather.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "tune/compress/codecs/half_scale.h"
#include "tune/compress/compressor.h"
#include "tune/kernels/linear/sparse.h"

namespace commprof::compress {

std::byte* Gather::prepare(size_t bytes, const Channel& channel) {
  bytes_ = bytes;
  return mine_.reserve(bytes + channel.trailerBytes());
}

std::vector<std::span<const std::byte>> Gather::run(Channel& channel) {
  const size_t length = bytes_ + channel.trailerBytes();
  const size_t stride = aligned(length);
  std::byte* const theirs = theirs_.reserve(stride * size_t(channel.size()));
  std::vector<Bytes> receive;
  std::vector<std::span<const std::byte>> payloads;
  for (int r = 0; r < channel.size(); ++r) {
    receive.push_back({theirs + stride * size_t(r), length});
    payloads.push_back(
        r == channel.rank() ? mine() : receive.back().first(bytes_));
  }
  channel.report().payload_bytes += bytes_;
  channel.sendToAll({mine_.data(), length}, receive).wait();
  return payloads;
}

void refusePayload(int rank, const Channel& channel, const char* reason) {
  throw PayloadError(
      "rank " + std::to_string(channel.nameOf(rank)) + ", bucket " +
      std::to_string(channel.bucketIndex()) + ": " + reason);
}

namespace {

using kernels::kSparsePart;
using kernels::sparseParts;

// Expected number of a rank's chosen places in the sample. A place is an index
// in the bucket. With 8 ranks, the share of distinct places is then accurate to
// about 2 %.
constexpr size_t kWanted = 256;
constexpr size_t kMost = 2 * kWanted;

// The finaliser of MurmurHash3 (Appleby, public domain). It mixes all bits, so
// that regular choices, such as every 64th place, are sampled evenly.
uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// A place is in the sample if mixed(place) is at most the returned limit. `k`:
// number of places that each rank chooses.
uint32_t limitFor(size_t k) {
  return uint32_t(
      std::min<uint64_t>(
          UINT32_MAX, (uint64_t(kWanted) << 32) / std::max<size_t>(k, 1)));
}

} // namespace

size_t choicesBytes(size_t n) {
  return (sparseParts(n) + 1 + kMost) * sizeof(uint32_t);
}

void writeChoices(std::span<const int32_t> chosen, size_t n, std::byte* out) {
  std::vector<uint32_t> words(choicesBytes(n) / sizeof(uint32_t));
  uint32_t& drawn = words[sparseParts(n)];
  uint32_t* const list = &drawn + 1;
  const uint32_t limit = limitFor(chosen.size());
  for (const int32_t place : chosen) {
    ++words[size_t(place) / kSparsePart];
    if (mixed(uint32_t(place)) <= limit && drawn < kMost) {
      list[drawn++] = uint32_t(place);
    }
  }
  std::memcpy(out, words.data(), choicesBytes(n));
}

std::optional<Choices> readChoices(const std::byte* in, size_t n, size_t k) {
  std::vector<uint32_t> words(choicesBytes(n) / sizeof(uint32_t));
  std::memcpy(words.data(), in, choicesBytes(n));
  const auto counts_end = words.begin() + long(sparseParts(n));
  const uint32_t drawn = *counts_end;
  for (size_t part = 0; part < sparseParts(n); ++part) {
    if (words[part] > std::min(kSparsePart, n - part * kSparsePart)) {
      return std::nullopt;
    }
  }
  if (drawn > kMost ||
      std::accumulate(words.begin(), counts_end, uint64_t(0)) != k) {
    return std::nullopt;
  }
  return Choices{
      {words.begin(), counts_end},
      {counts_end + 1, counts_end + 1 + long(drawn)}};
}

double distinctShare(std::span<const Choices> ranks) {
  std::vector<uint32_t> all;
  for (const Choices& one : ranks) {
    all.insert(all.end(), one.drawn.begin(), one.drawn.end());
  }
  if (all.empty()) {
    return 1;
  }
  std::sort(all.begin(), all.end());
  const auto distinct = std::unique(all.begin(), all.end()) - all.begin();
  return double(distinct) / double(all.size());
}

namespace {

using kernels::kSparsePart;
using kernels::sparseBytes;
using kernels::sparseParts;

constexpr uint64_t kEntryBytes = 4;
// With fewer ranks, this exchange saves hardly any bytes.
constexpr int kFewestRanks = 4;
// If a rank chooses fewer values, this exchange's three additional messages
// cost more than the saved bytes.
constexpr size_t kFewestValues = 16384;
// The exchange is used only if it sends less than this fraction of the bytes of
// the other exchange.
constexpr double kClearly = 0.9;

// Average number of bytes that a rank sends. `distinct`: number of distinct
// places that the ranks chose.
double splitBytes(size_t n, size_t k, int world, double distinct) {
  const double others = double(world - 1);
  return others / world * double(kEntryBytes) * (double(k) + distinct) +
      others * double(choicesBytes(n));
}

size_t messageBytes(size_t n, size_t count, const Channel& channel) {
  return count == 0 ? 0 : sparseBytes(n, count) + channel.trailerBytes();
}

int smallestExponent(std::span<const Header> headers) {
  int smallest = std::numeric_limits<int>::max();
  for (const Header& header : headers) {
    smallest = std::min(smallest, int(header.exponent));
  }
  return smallest;
}

} // namespace

bool SplitGather::canPay(size_t n, size_t k, int world, uint64_t other_bytes) {
  return world >= kFewestRanks && k >= kFewestValues &&
      sparseParts(n) >= size_t(world) &&
      splitBytes(n, k, world, double(k)) < kClearly * double(other_bytes);
}

bool SplitGather::agree(
    Job& job,
    std::span<const int32_t> chosen,
    uint64_t other_bytes) {
  Channel& channel = job.channel;
  const size_t n = job.bucket.numel, k = chosen.size();
  writeChoices(chosen, n, gather_.prepare(choicesBytes(n), channel));
  const auto messages = gather_.run(channel);
  choices_.clear();
  for (int r = 0; r < channel.size(); ++r) {
    auto choices = readChoices(messages[size_t(r)].data(), n, k);
    if (!choices) {
      refusePayload(r, channel, "counts of chosen places do not add up");
    }
    choices_.push_back(std::move(*choices));
  }
  const double distinct =
      distinctShare(choices_) * double(k) * double(channel.size());
  return splitBytes(n, k, channel.size(), distinct) <
      kClearly * double(other_bytes);
}

void SplitGather::run(Job& job, const uint8_t* encoded) {
  divide(job.bucket.numel);
  scatter(job, encoded);
  sum(job);
  encodeSums(job);
  share(job);
}

void SplitGather::divide(size_t n) {
  const size_t world = choices_.size(), parts = sparseParts(n);
  uint64_t total = 0;
  for (const Choices& one : choices_) {
    for (const uint32_t count : one.counts) {
      total += count;
    }
  }
  regions_.assign(world, {});
  std::vector<size_t> before(world, 0);
  uint64_t passed = 0;
  size_t part = 0;
  for (size_t owner = 0; owner < world; ++owner) {
    Region& region = regions_[owner];
    region.begin = std::min(n, part * kSparsePart);
    for (size_t r = 0; r < world; ++r) {
      region.from.push_back({part, 0, before[r], 0});
    }
    const uint64_t until = total * (owner + 1) / world;
    while (part < parts && (passed < until || owner + 1 == world)) {
      for (size_t r = 0; r < world; ++r) {
        const uint32_t count = choices_[r].counts[part];
        region.from[r].parts += 1;
        region.from[r].count += count;
        before[r] += count;
        passed += count;
      }
      ++part;
    }
    region.numel = std::min(n, part * kSparsePart) - region.begin;
  }
}

void SplitGather::scatter(Job& job, const uint8_t* encoded) {
  Channel& channel = job.channel;
  const auto world = size_t(channel.size()), me = size_t(channel.rank());
  const size_t k = job.mine().k;
  const Region& own = regions_[me];
  std::vector<size_t> to, from;
  size_t to_bytes = 0, from_bytes = 0;
  for (size_t r = 0; r < world; ++r) {
    to.push_back(to_bytes);
    from.push_back(from_bytes);
    to_bytes += aligned(
        sparseBytes(regions_[r].numel, regions_[r].from[me].count) +
        channel.trailerBytes());
    from_bytes += aligned(messageBytes(own.numel, own.from[r].count, channel));
  }
  std::byte* const sent = sent_.reserve(to_bytes);
  std::byte* const received = received_.reserve(from_bytes);
  std::vector<Bytes> send, receive;
  parts_.clear();
  for (size_t r = 0; r < world; ++r) {
    const kernels::SparseRange& range = regions_[r].from[me];
    std::byte* const out = sent + to[r];
    kernels::cutSparse(encoded, job.bucket.numel, k, range, octets(out));
    send.push_back(
        {out, messageBytes(regions_[r].numel, range.count, channel)});
    receive.push_back(
        {received + from[r],
         messageBytes(own.numel, own.from[r].count, channel)});
    parts_.push_back(octets(r == me ? out : received + from[r]));
  }
  channel.report().payload_bytes += sparseBytes(job.bucket.numel, k);
  channel.exchange(send, receive).wait();
}

void SplitGather::sum(Job& job) {
  Channel& channel = job.channel;
  const Region& own = regions_[size_t(channel.rank())];
  StageTimer timer(channel.report(), Stage::kReduce);
  float* const sums = sums_.reserveFloats(own.numel);
  std::fill_n(sums, own.numel, 0.0f);
  for (int r = 0; r < channel.size(); ++r) {
    const size_t count = own.from[size_t(r)].count;
    const uint8_t* const in = parts_[size_t(r)];
    if (count == 0) {
      continue;
    }
    if (!kernels::validSparse(in, own.numel, count)) {
      refusePayload(r, channel, "places are out of order or out of range");
    }
    const float factor =
        powerOfTwo(-job.headers[size_t(r)].exponent) / float(channel.size());
    kernels::addSparse(in, own.numel, count, factor, sums);
  }
  if (places_.size() < own.numel) {
    places_.resize(own.numel);
    values_.resize(own.numel);
  }
  found_ = 0;
  for (size_t i = 0; i < own.numel; ++i) {
    places_[found_] = int32_t(i);
    values_[found_] = sums[i];
    found_ += sums[i] != 0;
  }
}

// Adds the rounding error of the sums to the owner's residual. The error is
// multiplied by the world size, because the mean divides the owner's gradients
// by the world size.
void SplitGather::encodeSums(Job& job) {
  Channel& channel = job.channel;
  const Region& own = regions_[size_t(channel.rank())];
  StageTimer timer(channel.report(), Stage::kReduce);
  float* lost = nullptr;
  if (job.residual != nullptr) {
    lost = lost_.reserveFloats(own.numel);
    std::fill_n(lost, own.numel, 0.0f);
  }
  kernels::encodeSparse(
      places_.data(),
      values_.data(),
      found_,
      own.numel,
      powerOfTwo(smallestExponent(job.headers)),
      lost,
      octets(results_.reserve(
          sparseBytes(own.numel, found_) + channel.trailerBytes())));
  if (lost == nullptr) {
    return;
  }
  for (size_t i = 0; i < own.numel; ++i) {
    lost[i] *= float(channel.size());
    job.residual[own.begin + i] += lost[i];
  }
  if (job.sent != nullptr) {
    job.sent->lost.assign(lost, lost + own.numel);
    job.sent->lost_offset = own.begin;
  }
}

void SplitGather::share(Job& job) {
  Channel& channel = job.channel;
  const auto world = size_t(channel.size()), me = size_t(channel.rank());
  const auto mine = uint32_t(found_);
  std::memcpy(gather_.prepare(sizeof(mine), channel), &mine, sizeof(mine));
  const auto messages = gather_.run(channel);
  std::vector<size_t> counts, offsets;
  size_t bytes = 0;
  for (size_t r = 0; r < world; ++r) {
    uint32_t count;
    std::memcpy(&count, messages[r].data(), sizeof(count));
    if (count > regions_[r].numel) {
      refusePayload(
          int(r),
          channel,
          "it announces more sums than its part of the bucket has places");
    }
    counts.push_back(count);
    offsets.push_back(bytes);
    bytes += aligned(messageBytes(regions_[r].numel, count, channel));
  }
  std::byte* const received = received_.reserve(bytes);
  std::vector<Bytes> receive;
  for (size_t r = 0; r < world; ++r) {
    receive.push_back(
        {received + offsets[r],
         messageBytes(regions_[r].numel, counts[r], channel)});
  }
  const size_t length = messageBytes(regions_[me].numel, mine, channel);
  channel.sendToAll({results_.data(), length}, receive).wait();
  StageTimer timer(channel.report(), Stage::kDecode);
  const float factor = powerOfTwo(-smallestExponent(job.headers));
  if (job.residual == nullptr) { // else topKMoved() zeroed the gradient
    std::fill_n(job.bucket.gradient, job.bucket.numel, 0.0f);
  }
  for (size_t r = 0; r < world; ++r) {
    const Region& region = regions_[r];
    const uint8_t* const in =
        octets(r == me ? results_.data() : receive[r].data());
    if (counts[r] == 0) {
      continue;
    }
    if (!kernels::validSparse(in, region.numel, counts[r])) {
      refusePayload(int(r), channel, "sums are out of order or out of range");
    }
    kernels::addSparse(
        in,
        region.numel,
        counts[r],
        factor,
        job.bucket.gradient + region.begin);
  }
}

} // namespace commprof::compress
