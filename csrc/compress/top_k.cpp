#include "compress/top_k.h"

#include <algorithm>

#include "compress/half_scale.h"
#include "compress/share.h"
#include "kernels/sparse.h"

namespace commprof::compress {

namespace {

uint8_t* octets(std::byte* bytes) {
  return reinterpret_cast<uint8_t*>(bytes);
}
const uint8_t* octets(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

} // namespace

TopK::TopK(uint64_t ratio_ppb, size_t piece_bytes)
    : ratio_ppb_(ratio_ppb), all_as_half_(makeHalfCodec(), piece_bytes) {}

uint32_t TopK::k(size_t n) const {
  return uint32_t(shareOf(n, ratio_ppb_));
}

bool TopK::lossless(size_t n) const {
  return n < kSmallestSparse || k(n) == n;
}

// 4 k (W - 1) against 2 x 2 n (W - 1) / W.
bool TopK::dense(size_t n, int world) const {
  return uint64_t(k(n)) * uint64_t(world) >= n;
}

void TopK::encode(const Job& job, std::byte* out) {
  const size_t n = job.bucket.numel, k = job.mine().k;
  StageTimer timer(job.channel.report(), Stage::kEncode);
  indices_.resize(k);
  values_.resize(k);
  if (job.residual != nullptr) {
    kernels::topKFeedback(
        job.bucket.gradient,
        job.residual,
        n,
        k,
        indices_.data(),
        values_.data(),
        scratch_);
  } else {
    kernels::topK(
        job.bucket.gradient, n, k, indices_.data(), values_.data(), scratch_);
  }
  kernels::encodeSparse(
      indices_.data(),
      values_.data(),
      k,
      n,
      powerOfTwo(job.mine().exponent),
      job.residual,
      octets(out));
}

void TopK::run(Job& job) {
  const size_t n = job.bucket.numel, k = job.mine().k;
  const int world = job.channel.size();
  if (dense(n, world)) {
    all_as_half_.run(job);
    return;
  }
  encode(job, gather_.prepare(kernels::sparseBytes(n, k), job.channel));
  if (job.sent != nullptr) {
    job.sent->keep(gather_.mine());
  }
  const auto payloads = gather_.run(job.channel);
  StageTimer timer(job.channel.report(), Stage::kDecode);
  std::fill_n(job.bucket.gradient, n, 0.0f);
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
  if (dense(n, sent.world)) {
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

} // namespace commprof::compress
