#include "compress/sign_scheme.h"

#include <algorithm>
#include <cmath>

#include "compress/share.h"
#include "kernels/sign.h"

namespace commprof::compress {

namespace {

// Bits first, then scales.
size_t bitBytes(size_t n) {
  return kernels::signWords(n) * sizeof(uint64_t);
}
size_t payloadBytes(size_t n) {
  return bitBytes(n) + kernels::signBlocks(n) * sizeof(float);
}
const float* scalesOf(const std::byte* payload, size_t n) {
  return reinterpret_cast<const float*>(payload + bitBytes(n));
}

bool valid(const std::byte* payload, size_t n) {
  const float* const scales = scalesOf(payload, n);
  return std::all_of(scales, scales + kernels::signBlocks(n), [](float scale) {
    return std::isfinite(scale) && scale >= 0;
  });
}

void add(const std::byte* payload, size_t n, float factor, float* out) {
  kernels::addSign(
      reinterpret_cast<const uint64_t*>(payload),
      scalesOf(payload, n),
      out,
      n,
      factor);
}

} // namespace

bool Sign::lossless(size_t n) const {
  return n < kSmallestSparse;
}

void Sign::run(Job& job) {
  const size_t n = job.bucket.numel;
  {
    StageTimer timer(job.channel.report(), Stage::kEncode);
    std::byte* const out = gather_.prepare(payloadBytes(n), job.channel);
    kernels::encodeSign(
        job.bucket.gradient,
        job.residual,
        reinterpret_cast<uint64_t*>(out),
        reinterpret_cast<float*>(out + bitBytes(n)),
        n);
  }
  if (job.sent != nullptr) {
    job.sent->keep(gather_.mine());
  }
  const auto payloads = gather_.run(job.channel);
  StageTimer timer(job.channel.report(), Stage::kDecode);
  std::fill_n(job.bucket.gradient, n, 0.0f);
  for (int r = 0; r < job.channel.size(); ++r) {
    const std::byte* const payload = payloads[size_t(r)].data();
    if (!valid(payload, n)) {
      refusePayload(
          r, job.channel, "a block's scale is negative or not finite");
    }
    add(payload, n, 1.0f / float(job.channel.size()), job.bucket.gradient);
  }
}

void Sign::addSent(
    const Sent& sent,
    std::span<const Slot> /*slots*/,
    float* dense) {
  add(sent.payload.data(), sent.numel, 1.0f, dense);
}

uint64_t Sign::wireBytes(std::span<const Slot> /*slots*/, size_t n, int world)
    const {
  return payloadBytes(n) * uint64_t(world - 1);
}

} // namespace commprof::compress
