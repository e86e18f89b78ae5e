#include "compress/random_blocks.h"

#include <algorithm>
#include <cstring>

#include "compress/share.h"
#include "kernels/random_k.h"

namespace commprof::compress {

namespace {

size_t allBlocks(size_t n) {
  return (n + kernels::kRandomBlock - 1) / kernels::kRandomBlock;
}

} // namespace

RandomBlocks::RandomBlocks(uint64_t ratio_ppb, uint64_t seed, bool feedback)
    : ratio_ppb_(ratio_ppb), seed_(seed), feedback_(feedback) {}

uint32_t RandomBlocks::k(size_t n) const {
  return uint32_t(shareOf(allBlocks(n), ratio_ppb_));
}

bool RandomBlocks::lossless(size_t n) const {
  return n < kSmallestSparse || k(n) == allBlocks(n);
}

float RandomBlocks::gain(size_t n) const {
  return feedback_ ? 1.0f : float(double(allBlocks(n)) / double(k(n)));
}

void RandomBlocks::choose(uint64_t signature, uint64_t step, size_t n) {
  kernels::chooseBlocks(seed_ ^ signature, step, n, k(n), blocks_);
}

void RandomBlocks::run(Job& job) {
  const Bucket& bucket = job.bucket;
  const size_t n = bucket.numel;
  const size_t count = k(n) * kernels::kRandomBlock;
  float* const packed = packed_.reserveFloats(count);
  const std::span<float> values(packed, count);
  {
    StageTimer timer(job.channel.report(), Stage::kEncode);
    choose(bucket.signature, bucket.step, n);
    kernels::gatherBlocks(bucket.gradient, job.residual, n, blocks_, packed);
  }
  if (job.sent != nullptr) {
    job.sent->keep(std::as_bytes(values));
  }
  job.channel.report().payload_bytes += values.size_bytes();
  job.channel.allReduceSum(values).wait();
  StageTimer timer(job.channel.report(), Stage::kDecode);
  const float factor = gain(n) / float(job.channel.size());
  kernels::scatterBlocks(packed, n, blocks_, factor, bucket.gradient);
}

void RandomBlocks::addSent(
    const Sent& sent,
    std::span<const Slot> /*slots*/,
    float* dense) {
  choose(sent.signature, sent.step, sent.numel);
  const float factor = gain(sent.numel);
  for (size_t j = 0; j < blocks_.size(); ++j) {
    const size_t begin = size_t(blocks_[j]) * kernels::kRandomBlock;
    const size_t end = std::min(begin + kernels::kRandomBlock, sent.numel);
    for (size_t i = begin; i < end; ++i) {
      float value;
      const size_t at = j * kernels::kRandomBlock + i - begin;
      std::memcpy(
          &value, sent.payload.data() + at * sizeof(float), sizeof(value));
      dense[i] += value * factor;
    }
  }
}

uint64_t RandomBlocks::wireBytes(
    std::span<const Slot> /*slots*/,
    size_t n,
    int world) const {
  return ringBytes(k(n) * kernels::kRandomBlock * sizeof(float), world);
}

} // namespace commprof::compress
