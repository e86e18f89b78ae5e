#include "tune/compress/compressor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>

#include "base/fnv1a.h"
#include "tune/compress/codecs/half_scale.h"
#include "tune/compress/exchange/messages/channel.h"
#include "tune/compress/exchange/messages/wire.h"
#include "tune/compress/residuals.h"
#include "tune/compress/schemes/scheme.h"
#include "tune/kernels/linear/compare.h"

namespace commprof::compress {

namespace {

struct Settings {
  SchemeCode scheme = SchemeCode::kNone;
  SchemeSettings of_scheme;
  bool feedback = false;
  uint64_t start_step = 0; // earlier steps exchange plain means
  bool checksum = false;
  uint32_t measure_every = 0;
  uint16_t hash = 0; // hash of the options that ranks must agree on
};

uint16_t hashOf(const std::vector<double>& values, uint64_t seed) {
  Fnv1a fnv;
  for (const double value : values) {
    fnv.add(std::bit_cast<uint64_t>(value));
  }
  fnv.add(seed);
  const uint64_t hash = fnv.value();
  return uint16_t(hash ^ (hash >> 16) ^ (hash >> 32) ^ (hash >> 48));
}

struct SchemeRow {
  const char* name;
  SchemeCode code;
  double feedback;
};

SchemeRow rowOf(const std::string& scheme) {
#define X(enumerator, code, name, feedback, exchange, meaning) \
  if (scheme == name) {                                        \
    return {name, SchemeCode::k##enumerator, feedback};        \
  }
  COMMPROF_SCHEMES(X)
  COMMPROF_TRANSPORT_SCHEMES(X)
#undef X
  throw std::invalid_argument("compression scheme '" + scheme + "' is unknown");
}

Settings settingsOf(const Options& options) {
  const SchemeRow row = rowOf(options.scheme);
  std::map<std::string, double> value;
  std::vector<double> agreed{double(options.piece_bytes)};
#define X(taker, option, low, high, usual, whole, meaning) \
  if (row.code != SchemeCode::kNone &&                     \
      (SchemeCode::k##taker == row.code ||                 \
       SchemeCode::k##taker == SchemeCode::kNone)) {       \
    value[option] = usual;                                 \
  }
  COMMPROF_SCHEME_OPTIONS(X)
#undef X
  value["feedback"] = row.feedback;
  for (auto& [name, chosen] : value) {
    const auto given = options.values.find(name);
    chosen = given == options.values.end() ? chosen : given->second;
    agreed.push_back(chosen);
  }
  Settings settings;
  settings.scheme = row.code;
  settings.of_scheme = {value, options.seed, options.piece_bytes};
  settings.feedback = value["feedback"] != 0;
  settings.start_step = uint64_t(value["start_step"]);
  settings.checksum = value["checksum"] != 0;
  settings.measure_every = options.measure_every;
  settings.hash = hashOf(agreed, options.seed);
  return settings;
}

std::unique_ptr<Scheme> makeScheme(const Settings& settings) {
  switch (settings.scheme) {
#define X(scheme, value, name, feedback, exchange, meaning) \
  case SchemeCode::k##scheme:                               \
    return make##scheme(settings.of_scheme);
    COMMPROF_SCHEMES(X)
#undef X
  }
  return nullptr;
}

// Computes the mean with one all-reduce: divides by the number of ranks, then
// sums, as DDP does without a hook.
void plainMean(const Bucket& bucket, Channel& channel) {
  {
    // Multiplies by the reciprocal, as DDP does, so that the results are
    // bitwise equal.
    StageTimer timer(channel.report(), Stage::kEncode);
    const auto factor = float(1.0 / channel.size());
    for (size_t i = 0; i < bucket.numel; ++i) {
      bucket.gradient[i] *= factor;
    }
  }
  channel.allReduceSum({bucket.gradient, bucket.numel}).wait();
  channel.report().payload_bytes += bucket.numel * sizeof(float);
}

void setNaN(const Bucket& bucket, BucketReport& report) {
  std::fill_n(
      bucket.gradient, bucket.numel, std::numeric_limits<float>::quiet_NaN());
  report.nonfinite = true;
}

class BucketCompressor : public Compressor {
 public:
  explicit BucketCompressor(const Settings& settings)
      : settings_(settings), scheme_(makeScheme(settings)) {}

  void run(const Bucket& bucket, Transport& transport, BucketReport& report)
      override {
    checkBucket(bucket);
    report = BucketReport{};
    sent_log_.beginStep(bucket.step);
    Channel channel(transport, report, bucket.index, settings_.checksum);
    if (lossless(bucket)) {
      runLossless(bucket, channel, transport);
    } else {
      runScheme(bucket, channel, transport);
    }
  }

  uint64_t wireBytes(std::span<const Slot> slots, int world) const override {
    size_t n = 0;
    for (const Slot& slot : slots) {
      n = std::max(n, slot.offset + slot.numel);
    }
    if (!scheme_) {
      return ringBytes(n * sizeof(float), world);
    }
    if (scheme_->lossless(n)) {
      return ringBytes(n * sizeof(float), world) +
          (settings_.feedback ? handshakeBytes(world) : 0);
    }
    return scheme_->wireBytes(slots, n, world) + handshakeBytes(world);
  }

  std::vector<float> takeResidual(const Bucket& bucket, const Slot& slot)
      override {
    // run() does this too, but a rank that exchanges no part of the bucket (see
    // host_stage.h) does not call run().
    sent_log_.beginStep(bucket.step);
    return residuals_.take(bucket, slot);
  }

  void putBack(const Slot& slot, std::vector<float> residual) override {
    residuals_.load({slot.parameter, "residual", std::move(residual)});
  }

  std::vector<ParameterState> state() const override {
    std::vector<ParameterState> state;
    residuals_.save(state);
    if (scheme_) {
      scheme_->save(state);
    }
    return state;
  }

  void load(const std::vector<ParameterState>& state) override {
    residuals_.clear();
    sent_log_.clear();
    if (scheme_) {
      scheme_->clear();
    }
    for (const ParameterState& one : state) {
      if (one.kind == "residual") {
        residuals_.load(one);
      } else if (!scheme_ || !scheme_->load(one)) {
        throw std::invalid_argument(
            "state of kind '" + one.kind + "' for parameter " +
            std::to_string(one.parameter) +
            " is not what compression scheme '" + schemeName(settings_.scheme) +
            "' keeps: load a state that this scheme saved");
      }
    }
  }

  void scaleResiduals(float factor) override {
    if (!std::isfinite(factor) || factor <= 0) {
      throw std::invalid_argument(
          "residuals cannot be scaled by " + std::to_string(factor) +
          ": pass new loss scale / old loss scale, above 0 and finite");
    }
    residuals_.scale(factor);
    for (Sent& sent : sent_log_.entries()) {
      sent.factor *= factor;
    }
  }

  void stepSkipped() override {
    for (const Sent& sent : sent_log_.entries()) {
      float* const residual = residuals_.find(sent.signature);
      if (residual != nullptr) {
        giveBack(sent, residual);
      }
    }
    sent_log_.clear();
  }

 private:
  bool lossless(const Bucket& bucket) const {
    return !scheme_ || bucket.step < settings_.start_step ||
        scheme_->lossless(bucket.numel);
  }

  Header headerOf(const Bucket& bucket, uint32_t max_bits, uint32_t k) const {
    Header header;
    header.scheme = settings_.scheme;
    header.nonfinite = !isFinite(max_bits);
    header.exponent =
        header.nonfinite ? int8_t(0) : int8_t(halfExponent(max_bits));
    header.options = settings_.hash;
    header.n = uint32_t(bucket.numel);
    header.k = k;
    header.signature = bucket.signature;
    header.step = uint32_t(bucket.step);
    header.index = uint16_t(bucket.index);
    return header;
  }

  bool agree(
      const Bucket& bucket,
      const Header& mine,
      BucketReport& report,
      Transport& transport) {
    Channel bare(transport, report, bucket.index, false);
    headers_ = handshake_.run(mine, bare);
    report.payload_bytes += kHeaderBytes;
    const bool finite =
        std::none_of(headers_.begin(), headers_.end(), [](const Header& one) {
          return one.nonfinite;
        });
    if (!finite) {
      setNaN(bucket, report);
    }
    return finite;
  }

  void runScheme(const Bucket& bucket, Channel& channel, Transport& transport) {
    float* residual =
        settings_.feedback ? residuals_.forBucket(bucket) : nullptr;
    UnsentResiduals unsent(bucket, residual);
    const bool measure = settings_.measure_every != 0 &&
        bucket.step % settings_.measure_every == 0;
    if (measure) {
      quality_.begin(bucket, residual);
    }
    const Snapshot seen = scheme_->inspect(
        {bucket, residual, next_residual_, channel.size(), channel.report()});
    const Header mine =
        headerOf(bucket, seen.max_bits, scheme_->k(bucket.numel));
    if (!agree(bucket, mine, channel.report(), transport)) {
      return;
    }
    if (seen.moved) {
      residual = residuals_.replace(bucket.signature, next_residual_);
      unsent.moveTo(residual);
    }
    Sent* sent = nullptr;
    if (residual != nullptr || measure) {
      Sent& slot = residual != nullptr ? sent_log_.append() : measured_;
      sent = &beginSent(slot, bucket, mine, channel.size());
    }
    Job job{bucket, residual, channel, headers_, sent};
    scheme_->run(job);
    unsent.putBack();
    if (!job.finite) {
      setNaN(bucket, channel.report());
    } else if (measure) {
      quality_.finish(job, *scheme_);
    }
  }

  // With error feedback, all ranks must know that all gradients are finite
  // before residuals are sent, so headers are exchanged for every bucket.
  // Without error feedback, headers are exchanged once per signature.
  void runLossless(
      const Bucket& bucket,
      Channel& channel,
      Transport& transport) {
    if (settings_.feedback) {
      float* const residual = losslessResidual(bucket);
      const UnsentResiduals unsent(bucket, residual);
      const Header mine = headerOf(bucket, largestBits(bucket, residual), 0);
      if (!agree(bucket, mine, channel.report(), transport)) {
        return;
      }
      if (residual != nullptr) {
        sendResidual(bucket, mine, channel.size(), residual);
      }
    } else if (checked_signatures_.insert(bucket.signature).second) {
      agree(bucket, headerOf(bucket, 0, 0), channel.report(), transport);
    }
    plainMean(bucket, channel);
  }

  // Returns the residual to send with a lossless bucket, or null. Before
  // start_step only loaded residuals are sent.
  float* losslessResidual(const Bucket& bucket) {
    return bucket.step >= settings_.start_step ||
            residuals_.holdsAny(bucket.slots)
        ? residuals_.forBucket(bucket)
        : nullptr;
  }

  void sendResidual(
      const Bucket& bucket,
      const Header& mine,
      int world,
      float* residual) {
    for (size_t i = 0; i < bucket.numel; ++i) {
      bucket.gradient[i] += residual[i];
      residual[i] = 0;
    }
    Sent& sent = beginSent(sent_log_.append(), bucket, mine, world);
    sent.lossless = true;
    sent.keep(std::as_bytes(std::span(bucket.gradient, bucket.numel)));
  }

  static Sent& beginSent(
      Sent& sent,
      const Bucket& bucket,
      const Header& mine,
      int world) {
    Sent fresh;
    fresh.payload = std::move(sent.payload); // reuses its memory
    fresh.lost = std::move(sent.lost);
    fresh.lost.clear();
    sent = std::move(fresh);
    sent.signature = bucket.signature;
    sent.step = bucket.step;
    sent.numel = bucket.numel;
    sent.world = world;
    sent.exponent = mine.exponent;
    return sent;
  }

  void giveBack(const Sent& sent, float* residual) {
    std::vector<float> dense(sent.numel);
    if (sent.lossless) {
      std::memcpy(dense.data(), sent.payload.data(), sent.payload.size());
    } else {
      scheme_->addSent(sent, residuals_.slotsOf(sent.signature), dense.data());
    }
    for (size_t i = 0; i < sent.lost.size(); ++i) {
      dense[sent.lost_offset + i] -= sent.lost[i];
    }
    for (size_t i = 0; i < sent.numel; ++i) {
      residual[i] += dense[i] * sent.factor;
    }
  }

  Settings settings_;
  std::unique_ptr<Scheme> scheme_;
  Residuals residuals_;
  Scratch next_residual_;
  SentLog sent_log_;
  Handshake handshake_;
  Quality quality_;
  std::span<const Header> headers_;
  std::set<uint64_t> checked_signatures_;
  Sent measured_;
};

} // namespace

std::unique_ptr<Scheme> makeNone(const SchemeSettings&) {
  return nullptr;
}

std::unique_ptr<Compressor> Compressor::make(const Options& options) {
  return std::make_unique<BucketCompressor>(settingsOf(options));
}

} // namespace commprof::compress
