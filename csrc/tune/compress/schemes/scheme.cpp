#include "tune/compress/schemes/scheme.h"

#include <algorithm>
#include <cmath>

#include "tune/kernels/linear/compare.h"

namespace commprof::compress {

Snapshot Scheme::inspect(const Proposal& proposal) {
  StageTimer timer(proposal.report, Stage::kEncode);
  return {largestBits(proposal.bucket, proposal.residual)};
}

uint32_t largestBits(const Bucket& bucket, const float* residual) {
  return residual == nullptr
      ? kernels::maxAbsBits(bucket.gradient, bucket.numel)
      : kernels::maxAbsBitsOfSum(bucket.gradient, residual, bucket.numel);
}

namespace {

double norm2(const float* x, size_t n) {
  return kernels::compare(x, x, n).wanted_norm2;
}

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

// Counts the values that were sent as less than half of their size, but not as
// zero. Rounding alone never does this.
uint64_t countSaturated(const float* wanted, const float* sent, size_t n) {
  uint64_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    const bool cut = std::fabs(sent[i]) < 0.5f * std::fabs(wanted[i]);
    count += cut && sent[i] != 0;
  }
  return count;
}

} // namespace

void Quality::begin(const Bucket& bucket, const float* residual) {
  const size_t n = bucket.numel;
  const float* const gradient = bucket.gradient;
  float* const wanted = wanted_.reserveFloats(n);
  gradient_norm2_ = norm2(gradient, n);
  std::copy_n(gradient, n, wanted);
  for (size_t i = 0; residual != nullptr && i < n; ++i) {
    wanted[i] += residual[i];
  }
}

void Quality::finish(const Job& job, Scheme& scheme) {
  const size_t n = job.bucket.numel;
  const auto* const wanted = reinterpret_cast<float*>(wanted_.data());
  float* const sent = sent_.reserveFloats(n);
  std::fill_n(sent, n, 0.0f);
  scheme.addSent(*job.sent, job.bucket.slots, sent);
  const kernels::Comparison comparison = kernels::compare(wanted, sent, n);
  BucketReport& report = job.channel.report();
  report.has_quality = true;
  report.relative_error =
      std::sqrt(ratio(comparison.error_norm2, comparison.wanted_norm2));
  report.cosine = ratio(
      comparison.dot,
      std::sqrt(comparison.wanted_norm2 * comparison.sent_norm2));
  report.residual_ratio = job.residual == nullptr
      ? 0
      : std::sqrt(ratio(norm2(job.residual, n), gradient_norm2_));
  report.zeroed = comparison.zeroed;
  report.saturated = countSaturated(wanted, sent, n);
}

} // namespace commprof::compress
