#include "tune/compress/schemes/top_k.h"

#include <algorithm>
#include <cmath>

#include "tune/compress/codecs/half_scale.h"
#include "tune/kernels/linear/compare.h"
#include "tune/kernels/linear/sparse.h"

namespace commprof::compress {

TopK::TopK(uint64_t ratio_ppb, size_t piece_bytes)
    : ratio_ppb_(ratio_ppb), all_as_half_(makeHalfCodec(), piece_bytes) {}

uint32_t TopK::k(size_t n) const {
  return uint32_t(shareOf(n, ratio_ppb_));
}

bool TopK::lossless(size_t n) const {
  return n < kSmallestSparse || k(n) == n;
}

// Sending k values to all others takes 4 k (W - 1) bytes; sending all values as
// binary16 in two phases takes 2 x 2 n (W - 1) / W bytes.
bool TopK::dense(size_t n, int world) const {
  return uint64_t(k(n)) * uint64_t(world) >= n;
}

bool TopK::maySplit(std::span<const Slot> slots, size_t n, int world) const {
  return SplitGather::canPay(n, k(n), world, wireBytes(slots, n, world));
}

Snapshot TopK::inspect(const Proposal& proposal) {
  const size_t n = proposal.bucket.numel;
  chosen_ = !dense(n, proposal.world) ||
      maySplit(proposal.bucket.slots, n, proposal.world);
  if (!chosen_) {
    return all_as_half_.inspect(proposal);
  }
  choose(proposal);
  return {largestChosen(), proposal.residual != nullptr};
}

void TopK::run(Job& job) {
  const size_t n = job.bucket.numel;
  const int world = job.channel.size();
  const bool splits = maySplit(job.bucket.slots, n, world) &&
      split_.agree(job, indices_, wireBytes(job.bucket.slots, n, world));
  if (!splits && dense(n, world)) {
    unchoose(job);
    all_as_half_.run(job);
    return;
  }
  const std::byte* const encoded = encode(job);
  if (job.sent != nullptr) {
    job.sent->chosen = true;
    job.sent->keep(gather_.mine());
  }
  if (splits) {
    split_.run(job, octets(encoded));
  } else {
    sendToAll(job);
  }
}

void TopK::choose(const Proposal& proposal) {
  const size_t n = proposal.bucket.numel, count = k(n);
  float* const gradient = proposal.bucket.gradient;
  StageTimer timer(proposal.report, Stage::kEncode);
  indices_.resize(count);
  values_.resize(count);
  int32_t* const indices = indices_.data();
  float* const values = values_.data();
  if (proposal.residual == nullptr) {
    kernels::topK(gradient, n, count, indices, values, scratch_);
    return;
  }
  float* const next = proposal.next.reserveFloats(n);
  kernels::topKMoved(
      gradient, proposal.residual, next, n, count, indices, values, scratch_);
}

uint32_t TopK::largestChosen() const {
  return kernels::maxAbsBits(values_.data(), values_.size());
}

// Puts the chosen values back into the residual, where choose() has left zeros.
void TopK::unchoose(Job& job) {
  const bool moved = chosen_ && job.residual != nullptr;
  for (size_t i = 0; moved && i < indices_.size(); ++i) {
    job.residual[indices_[i]] = values_[i];
  }
}

std::byte* TopK::encode(const Job& job) {
  const size_t n = job.bucket.numel, k = job.mine().k;
  StageTimer timer(job.channel.report(), Stage::kEncode);
  std::byte* const out =
      gather_.prepare(kernels::sparseBytes(n, k), job.channel);
  kernels::encodeSparse(
      indices_.data(),
      values_.data(),
      k,
      n,
      powerOfTwo(job.mine().exponent),
      job.residual,
      octets(out));
  return out;
}

void TopK::sendToAll(Job& job) {
  const size_t n = job.bucket.numel, k = job.mine().k;
  const int world = job.channel.size();
  const auto payloads = gather_.run(job.channel);
  StageTimer timer(job.channel.report(), Stage::kDecode);
  if (job.residual == nullptr) { // else topKMoved() zeroed the gradient
    std::fill_n(job.bucket.gradient, n, 0.0f);
  }
  for (int r = 0; r < world; ++r) {
    const uint8_t* const in = octets(payloads[size_t(r)].data());
    if (!kernels::validSparse(in, n, k)) {
      refusePayload(r, job.channel, "places are out of order or out of range");
    }
    const float factor =
        powerOfTwo(-job.headers[size_t(r)].exponent) / float(world);
    kernels::addSparse(in, n, k, factor, job.bucket.gradient);
  }
}

void TopK::addSent(
    const Sent& sent,
    std::span<const Slot> slots,
    float* dense_values) {
  const size_t n = sent.numel;
  if (!sent.chosen) {
    all_as_half_.addSent(sent, slots, dense_values);
    return;
  }
  kernels::addSparse(
      octets(sent.payload.data()),
      n,
      k(n),
      powerOfTwo(-sent.exponent),
      dense_values);
}

uint64_t TopK::wireBytes(std::span<const Slot> slots, size_t n, int world)
    const {
  return dense(n, world) ? all_as_half_.wireBytes(slots, n, world)
                         : kernels::sparseBytes(n, k(n)) * uint64_t(world - 1);
}

std::unique_ptr<Scheme> makeTopK(const SchemeSettings& settings) {
  // parts per billion, so that k is the same integer on all ranks
  const auto ratio_ppb =
      uint64_t(std::llround(settings.options.at("ratio") * 1e9));
  return std::make_unique<TopK>(ratio_ppb, settings.piece_bytes);
}

} // namespace commprof::compress
