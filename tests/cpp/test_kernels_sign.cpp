// Signs with a mean per block: against a plain reference, at all levels.
#include "kernel_cases.h"
#include "kernels/sign.h"

using namespace commprof::kernels;
using namespace kernel_cases;

namespace {

double meanMagnitude(const std::vector<float>& x, size_t block) {
  const size_t first = block * kSignBlock;
  const size_t end = std::min(x.size(), first + kSignBlock);
  double sum = 0;
  for (size_t i = first; i < end; ++i) {
    sum += std::fabs(double(x[i]));
  }
  return sum / double(end - first);
}

struct Encoded {
  std::vector<uint64_t> bits;
  std::vector<float> scales;
};

void bitsAreSigns(
    const Encoded& out,
    const std::vector<float>& x,
    const std::string& what) {
  std::vector<uint64_t> bits(signWords(x.size()), 0);
  for (size_t i = 0; i < x.size(); ++i) {
    bits[i / 64] |= uint64_t(std::signbit(x[i])) << i % 64;
  }
  CHECK_SAME_BITS(out.bits, bits, what);
}

void scalesAreMeans(
    const Encoded& out,
    const std::vector<float>& x,
    const std::string& what) {
  for (size_t block = 0; block < out.scales.size(); ++block) {
    const double mean = meanMagnitude(x, block);
    // fp32 sums of 64 times 32 values; the last digit of a denormal mean.
    const double bound = mean * 1e-5 + 0x1p-149;
    CHECK_AT(std::fabs(double(out.scales[block]) - mean) <= bound, what);
  }
}

void encodes(const Case& c, bool feedback) {
  std::vector<float> wanted = c.x;
  for (size_t i = 0; feedback && i < c.n; ++i) {
    wanted[i] += c.residual[i];
  }
  const Input<float> x(c.x, c.offset);
  Encoded first;
  forEachLevel([&](const std::string& level) {
    const std::string what = level + " " + c.name;
    Output<uint64_t> bits(signWords(c.n), c.offset);
    Output<float> scales(signBlocks(c.n), c.offset);
    Output<float> residual(c.residual, c.offset);
    float* lost = feedback ? residual.data() : nullptr;
    encodeSign(x.data(), lost, bits.data(), scales.data(), c.n);
    const Encoded out = {bits.values(), scales.values()};
    bitsAreSigns(out, wanted, what);
    scalesAreMeans(out, wanted, what);
    std::vector<float> expected = c.residual;
    for (size_t i = 0; feedback && i < c.n; ++i) {
      const float scale = out.scales[i / kSignBlock];
      expected[i] = wanted[i] - (std::signbit(wanted[i]) ? -scale : scale);
    }
    CHECK_SAME_BITS(residual.values(), expected, what + ", residual");
    CHECK_AT(bits.guardsIntact() && scales.guardsIntact(), what);
    CHECK_AT(residual.guardsIntact(), what);
    if (level == "scalar") {
      first = out;
    }
    CHECK_SAME_BITS(out.scales, first.scales, what + ", scales");
  });
}

void addsScaledSigns(const Case& c) {
  std::vector<uint64_t> bits(signWords(c.n));
  std::vector<float> scales(signBlocks(c.n));
  encodeSign(c.x.data(), nullptr, bits.data(), scales.data(), c.n);
  std::vector<float> expected = c.residual;
  for (size_t i = 0; i < c.n; ++i) {
    const float change = scales[i / kSignBlock] * 0.3f;
    expected[i] += std::signbit(c.x[i]) ? -change : change;
  }
  const Input<uint64_t> in(bits, c.offset);
  const Input<float> in_scales(scales, c.offset);
  forEachLevel([&](const std::string& level) {
    Output<float> out(c.residual, c.offset);
    addSign(in.data(), in_scales.data(), out.data(), c.n, 0.3f);
    CHECK_SAME_BITS(out.values(), expected, level + " " + c.name);
    CHECK_AT(out.guardsIntact(), level + " " + c.name);
  });
}

// 2048 times the largest float is beyond fp32, their mean is not.
void meanOfHugeValuesIsFinite() {
  const std::vector<float> x(kSignBlock + 100, -3e38f);
  forEachLevel([&](const std::string&) {
    std::vector<uint64_t> bits(signWords(x.size()));
    float scales[2];
    encodeSign(x.data(), nullptr, bits.data(), scales, x.size());
    CHECK(std::fabs(scales[0] / 3e38f - 1) < 1e-5f);
    CHECK(std::fabs(scales[1] / 3e38f - 1) < 1e-5f);
  });
}

} // namespace

int main() {
  announceLevels();
  forEachCase([](const Case& c) {
    encodes(c, false);
    encodes(c, true);
    addsScaledSigns(c);
  });
  meanOfHugeValuesIsFinite();
  return check::report();
}
