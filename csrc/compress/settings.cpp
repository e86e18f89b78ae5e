#include "compress/settings.h"

#include <cmath>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "base/fnv1a.h"
#include "compress/schemes/block_scheme.h"
#include "compress/schemes/power_sgd.h"
#include "compress/schemes/top_k.h"

namespace commprof::compress {

namespace {

struct SchemeSpec {
  SchemeCode code;
  const char* name;
  double feedback; // unless told otherwise
};

constexpr SchemeSpec kSchemes[] = {
#define X(code, name, feedback, meaning) {SchemeCode::k##code, name, feedback},
    COMMPROF_SCHEMES(X)
#undef X
};

const SchemeSpec& specOf(const std::string& name) {
  std::ostringstream known;
  for (const SchemeSpec& spec : kSchemes) {
    if (name == spec.name) {
      return spec;
    }
    known << ' ' << spec.name;
  }
  throw std::invalid_argument(
      "compression scheme '" + name + "' is unknown; there are:" + known.str());
}

void refuse(
    const Options& options,
    const std::string& name,
    const std::string& why) {
  std::ostringstream text;
  text << "option '" << name << "' of compression scheme '" << options.scheme
       << "' " << why;
  throw std::invalid_argument(text.str());
}

void checkValue(const Options& options, const OptionSpec& spec, double value) {
  const bool in_range = value >= spec.minimum && value <= spec.maximum;
  if (!in_range || (spec.whole && value != std::floor(value))) {
    std::ostringstream text;
    text << "is " << value
         << "; allowed: " << (spec.whole ? "whole numbers from " : "from ")
         << spec.minimum << " to " << spec.maximum;
    refuse(options, spec.name, text.str());
  }
}

void checkNames(const Options& options, const std::vector<OptionSpec>& specs) {
  std::string known;
  for (const OptionSpec& spec : specs) {
    known += " " + spec.name;
  }
  for (const auto& [name, value] : options.values) {
    bool found = false;
    for (const OptionSpec& spec : specs) {
      found = found || spec.name == name;
    }
    if (!found) {
      refuse(
          options,
          name,
          "is unknown; it takes" + (known.empty() ? " none" : ":" + known));
    }
  }
}

// Folds FNV-1a of all values to 16 bits.
uint16_t hashOf(const std::vector<double>& values, uint64_t seed) {
  Fnv1a fnv;
  for (const double value : values) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    fnv.add(bits);
  }
  fnv.add(seed);
  const uint64_t hash = fnv.value();
  return uint16_t(hash ^ (hash >> 16) ^ (hash >> 32) ^ (hash >> 48));
}

} // namespace

std::vector<std::string> schemeNames() {
  std::vector<std::string> names;
  for (const SchemeSpec& spec : kSchemes) {
    names.emplace_back(spec.name);
  }
  return names;
}

std::vector<OptionSpec> optionSpecs(const std::string& scheme) {
  const SchemeSpec& spec = specOf(scheme);
  std::vector<OptionSpec> specs;
  if (spec.code == SchemeCode::kNone) {
    return specs;
  }
#define X(taker, option, low, high, usual, integral, meaning) \
  if (SchemeCode::k##taker == spec.code ||                    \
      SchemeCode::k##taker == SchemeCode::kNone) {            \
    specs.push_back({option, low, high, usual, integral});    \
    if (specs.back().name == "feedback") {                    \
      specs.back().standard = spec.feedback;                  \
    }                                                         \
  }
  COMMPROF_SCHEME_OPTIONS(X)
#undef X
  return specs;
}

Settings parseOptions(const Options& options) {
  const std::vector<OptionSpec> specs = optionSpecs(options.scheme);
  checkNames(options, specs);
  Settings settings;
  settings.scheme = specOf(options.scheme).code;
  settings.seed = options.seed;
  settings.measure_every = options.measure_every;
  if (options.piece_bytes == 0) {
    throw std::invalid_argument("piece_bytes is 0; allowed: from 1");
  }
  settings.piece_bytes = options.piece_bytes;
  std::vector<double> values{double(options.piece_bytes)};
  for (const OptionSpec& spec : specs) {
    const auto given = options.values.find(spec.name);
    const double value =
        given == options.values.end() ? spec.standard : given->second;
    checkValue(options, spec, value);
    values.push_back(value);
    if (spec.name == "ratio") {
      settings.ratio_ppb = uint64_t(std::llround(value * 1e9));
    } else if (spec.name == "rank") {
      settings.rank = int(value);
    } else if (spec.name == "feedback") {
      settings.feedback = value != 0;
    } else if (spec.name == "start_step") {
      settings.start_step = uint64_t(value);
    } else if (spec.name == "checksum") {
      settings.checksum = value != 0;
    } // hierarchical: the caller's affair
  }
  settings.hash = hashOf(values, settings.seed);
  return settings;
}

std::unique_ptr<Scheme> makeScheme(const Settings& settings) {
  switch (settings.scheme) {
    case SchemeCode::kNone:
      return nullptr;
    case SchemeCode::kHalf:
      return std::make_unique<BlockScheme>(
          makeHalfCodec(), settings.piece_bytes);
    case SchemeCode::kBfloat16:
      return std::make_unique<BlockScheme>(
          makeBfloat16Codec(), settings.piece_bytes);
    case SchemeCode::kInt8:
      return std::make_unique<BlockScheme>(
          makeInt8Codec(), settings.piece_bytes);
    case SchemeCode::kInt4:
      return std::make_unique<BlockScheme>(
          makeInt4Codec(), settings.piece_bytes);
    case SchemeCode::kTopK:
      return std::make_unique<TopK>(settings.ratio_ppb, settings.piece_bytes);
    case SchemeCode::kPowerSgd:
      return std::make_unique<PowerSgd>(settings.rank, settings.seed);
  }
  return nullptr;
}

} // namespace commprof::compress
