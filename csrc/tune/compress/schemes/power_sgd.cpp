#include "tune/compress/schemes/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "base/text.h"
#include "tune/kernels/linear/low_rank.h"
#include "tune/kernels/philox.h"

namespace commprof::compress {

namespace {

bool worthIt(const Slot& slot, size_t rank) {
  return slot.cols != 0 &&
      2 * rank * (size_t(slot.rows) + slot.cols) <= slot.numel;
}

} // namespace

PowerSgd::PowerSgd(int rank, uint64_t seed) : rank_(rank), seed_(seed) {}

uint32_t PowerSgd::k(size_t /*n*/) const {
  return uint32_t(rank_);
}

PowerSgd::Plan PowerSgd::planOf(std::span<const Slot> slots, size_t n) const {
  Plan plan;
  size_t at = 0;
  const auto addRaw = [&](size_t end) {
    if (end > at) {
      plan.ranges.push_back({at, end - at, plan.raw});
      plan.raw += end - at;
    }
  };
  for (const Slot& slot : slots) {
    const size_t smaller = std::min(slot.rows, slot.cols);
    const size_t rank = std::min(size_t(rank_), smaller);
    if (!worthIt(slot, rank)) {
      continue;
    }
    addRaw(slot.offset);
    plan.matrices.push_back(
        {slot.parameter,
         slot.offset,
         slot.rows,
         slot.cols,
         int(rank),
         plan.p,
         plan.q});
    plan.p += slot.rows * rank;
    plan.q += slot.cols * rank;
    at = slot.offset + slot.numel;
  }
  addRaw(n);
  return plan;
}

void PowerSgd::run(Job& job) {
  const size_t n = job.bucket.numel;
  const Plan plan = planOf(job.bucket.slots, n);
  float* const first = first_.reserveFloats(plan.raw + plan.p);
  float* const second = second_.reserveFloats(plan.q);
  float* residual = job.residual;
  if (residual == nullptr) {
    residual = no_residual_.reserveFloats(n);
    std::fill_n(residual, n, 0.0f);
  }
  BucketReport& report = job.channel.report();
  report.payload_bytes += (plan.raw + plan.p + plan.q) * sizeof(float);

  project(job, plan, residual);
  job.channel.allReduceSum({first, plan.raw + plan.p}).wait();
  {
    StageTimer timer(report, Stage::kEncode);
    float* const p = first + plan.raw;
    for (const Matrix& m : plan.matrices) {
      kernels::orthogonalise(p + m.p, m.rows, m.rank);
      kernels::projectCols(
          residual + m.offset, m.rows, m.cols, m.rank, p + m.p, second + m.q);
    }
    std::copy_n(second, plan.q, local_.reserveFloats(plan.q));
  }
  if (job.sent != nullptr) {
    keep(plan, *job.sent);
  }
  job.channel.allReduceSum({second, plan.q}).wait();
  decode(job, plan, residual);
}

void PowerSgd::project(const Job& job, const Plan& plan, float* residual) {
  StageTimer timer(job.channel.report(), Stage::kEncode);
  const float* const gradient = job.bucket.gradient;
  float* const first = reinterpret_cast<float*>(first_.data());
  for (const Range& range : plan.ranges) {
    for (size_t i = 0; i < range.count; ++i) {
      const size_t at = range.offset + i;
      first[range.raw + i] = gradient[at] + residual[at];
      residual[at] = 0;
    }
  }
  if (job.sent != nullptr) { // the all-reduce overwrites the raw values
    std::copy_n(first, plan.raw, kept_raw_.reserveFloats(plan.raw));
  }
  for (const Matrix& m : plan.matrices) {
    kernels::projectRows(
        gradient + m.offset,
        residual + m.offset,
        m.rows,
        m.cols,
        m.rank,
        startOf(m, job.bucket.step).data(),
        first + plan.raw + m.p);
  }
}

void PowerSgd::keep(const Plan& plan, Sent& sent) const {
  sent.payload.resize((plan.raw + plan.p + plan.q) * sizeof(float));
  std::byte* out = sent.payload.data();
  const auto append = [&out](const std::byte* from, size_t count) {
    out = std::copy_n(from, count * sizeof(float), out);
  };
  append(kept_raw_.data(), plan.raw);
  append(first_.data() + plan.raw * sizeof(float), plan.p);
  append(local_.data(), plan.q);
}

void PowerSgd::decode(const Job& job, const Plan& plan, float* residual) {
  StageTimer timer(job.channel.report(), Stage::kDecode);
  const auto* const first = reinterpret_cast<float*>(first_.data());
  const auto* const local = reinterpret_cast<float*>(local_.data());
  auto* const second = reinterpret_cast<float*>(second_.data());
  float* const out = job.bucket.gradient;
  const float factor = 1.0f / float(job.channel.size());
  for (const Range& range : plan.ranges) {
    for (size_t i = 0; i < range.count; ++i) {
      out[range.offset + i] = first[range.raw + i] * factor;
    }
  }
  for (size_t i = 0; i < plan.q; ++i) {
    second[i] *= factor;
  }
  for (const Matrix& m : plan.matrices) {
    kernels::reconstruct(
        out + m.offset,
        residual + m.offset,
        m.rows,
        m.cols,
        m.rank,
        first + plan.raw + m.p,
        second + m.q,
        local + m.q);
    warmStart(m, second + m.q, job.bucket.step);
  }
}

std::vector<float>& PowerSgd::startOf(const Matrix& matrix, uint64_t step) {
  std::vector<float>& q = q_[matrix.parameter];
  const size_t size = size_t(matrix.rank) * matrix.cols;
  if (q.empty()) {
    q.resize(size);
    for (int row = 0; row < matrix.rank; ++row) {
      fillRandomly(matrix, step, row, q.data());
    }
  }
  if (q.size() != size) {
    throw std::invalid_argument(textOf(
        "factor q of parameter ",
        matrix.parameter,
        " has ",
        q.size(),
        " values, not ",
        matrix.rank,
        " x ",
        matrix.cols,
        ": load a state that was saved with this model and rank"));
  }
  return q;
}

// Scales q's rows to a size near 1; otherwise P would grow with the square of
// the gradients. A row of zeros would stay zero, and is therefore filled
// randomly.
void PowerSgd::warmStart(const Matrix& matrix, const float* q, uint64_t step) {
  std::vector<float>& start = q_[matrix.parameter];
  for (int row = 0; row < matrix.rank; ++row) {
    const float* const from = q + size_t(row) * matrix.cols;
    float* const to = start.data() + size_t(row) * matrix.cols;
    float largest = 0;
    for (size_t i = 0; i < matrix.cols; ++i) {
      largest = std::max(largest, std::fabs(from[i]));
    }
    if (largest < 0x1p-120f) {
      fillRandomly(matrix, step + 1, row, start.data());
      continue;
    }
    const float factor = std::ldexp(1.0f, -std::ilogb(largest));
    for (size_t i = 0; i < matrix.cols; ++i) {
      to[i] = from[i] * factor;
    }
  }
}

void PowerSgd::fillRandomly(
    const Matrix& matrix,
    uint64_t step,
    int row,
    float* q) {
  const uint64_t counter =
      uint64_t(matrix.parameter) * kernels::kMaxRank + uint64_t(row);
  kernels::PhiloxStream stream(seed_ + step, counter);
  for (size_t i = 0; i < matrix.cols; ++i) {
    q[size_t(row) * matrix.cols + i] =
        float(int32_t(stream.next()) >> 8) * 0x1p-23f;
  }
}

void PowerSgd::addSent(
    const Sent& sent,
    std::span<const Slot> slots,
    float* dense) {
  const Plan plan = planOf(slots, sent.numel);
  std::vector<float> values(sent.payload.size() / sizeof(float));
  std::memcpy(values.data(), sent.payload.data(), sent.payload.size());
  for (const Range& range : plan.ranges) {
    for (size_t i = 0; i < range.count; ++i) {
      dense[range.offset + i] += values[range.raw + i];
    }
  }
  const float* const p = values.data() + plan.raw;
  const float* const q = p + plan.p;
  std::vector<float> product, unused;
  for (const Matrix& m : plan.matrices) {
    product.assign(m.rows * m.cols, 0.0f);
    unused.assign(m.rows * m.cols, 0.0f);
    kernels::reconstruct(
        product.data(),
        unused.data(),
        m.rows,
        m.cols,
        m.rank,
        p + m.p,
        q + m.q,
        q + m.q);
    for (size_t i = 0; i < product.size(); ++i) {
      dense[m.offset + i] += product[i];
    }
  }
}

uint64_t PowerSgd::wireBytes(std::span<const Slot> slots, size_t n, int world)
    const {
  const Plan plan = planOf(slots, n);
  return ringBytes((plan.raw + plan.p) * sizeof(float), world) +
      ringBytes(plan.q * sizeof(float), world);
}

void PowerSgd::save(std::vector<ParameterState>& state) const {
  for (const auto& [parameter, q] : q_) {
    state.push_back({parameter, "q", q});
  }
}

bool PowerSgd::load(const ParameterState& state) {
  if (state.kind != "q") {
    return false;
  }
  q_[state.parameter] = state.values;
  return true;
}

void PowerSgd::clear() {
  q_.clear();
}

std::unique_ptr<Scheme> makePowerSgd(const SchemeSettings& settings) {
  return std::make_unique<PowerSgd>(
      int(settings.options.at("rank")), settings.seed);
}

} // namespace commprof::compress
