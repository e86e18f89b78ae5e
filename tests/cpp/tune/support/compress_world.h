#pragma once

#include <cmath>
#include <random>

#include "thread_transport.h"
#include "tune/compress/compressor.h"

namespace commprof::compress {

using Gradients = std::vector<std::vector<float>>;

inline const std::vector<float>& normals() {
  static const std::vector<float> pool = [] {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(1 << 18);
    for (float& value : values) {
      value = normal(generator);
    }
    return values;
  }();
  return pool;
}

// The values have 12 scales from 1e-5 to 1e-2, like the layers of a model. As
// in real gradients, all ranks have a part in common.
inline Gradients someGradients(int world, size_t n, uint32_t seed) {
  const std::vector<float>& pool = normals();
  // The lower bits of Knuth's generator are hardly random.
  const auto next = [&pool](uint32_t& state) {
    state = state * 1664525u + 1013904223u;
    return pool[state >> 14];
  };
  Gradients gradients;
  for (int rank = 0; rank < world; ++rank) {
    uint32_t common = seed, own = seed * 31 + uint32_t(rank) + 1;
    std::vector<float> g(n);
    float scale = 0;
    for (size_t i = 0, layer = 12; i < n; ++i) {
      if (i * 12 / n != layer) {
        layer = i * 12 / n;
        scale = float(1e-5 * std::pow(1000.0, double(layer) / 11));
      }
      g[i] = scale * (0.5f * next(common) + next(own));
    }
    gradients.push_back(std::move(g));
  }
  return gradients;
}

inline std::vector<double> meanOf(const Gradients& gradients) {
  std::vector<double> mean(gradients[0].size());
  for (const auto& g : gradients) {
    for (size_t i = 0; i < g.size(); ++i) {
      mean[i] += double(g[i]) / double(gradients.size());
    }
  }
  return mean;
}

inline double relativeError(
    const std::vector<double>& wanted,
    const std::vector<float>& found) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += (wanted[i] - found[i]) * (wanted[i] - found[i]);
    norm += wanted[i] * wanted[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

inline bool sameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
      (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

inline std::vector<Slot> someSlots(size_t n) {
  std::vector<Slot> slots;
  const size_t rows = n / 2 / 16;
  if (rows > 0) {
    slots.push_back({0, 0, rows * 16, uint32_t(rows), 16});
  }
  if (n > rows * 16) {
    slots.push_back({1, rows * 16, n - rows * 16, uint32_t(n - rows * 16), 0});
  }
  return slots;
}

class World {
 public:
  World(int world, const Options& options) : group_(world) {
    for (int rank = 0; rank < world; ++rank) {
      compressors_.push_back(Compressor::make(options));
    }
    reports.resize(size_t(world));
  }

  // Replaces each rank's gradients by the mean. Returns each rank's exception.
  std::vector<std::exception_ptr> tryRun(
      Gradients& gradients,
      const std::vector<Slot>& slots,
      uint64_t step,
      uint32_t index = 0) {
    ThreadGroup group(group_.world());
    group.tamper = group_.tamper;
    group.fails = group_.fails;
    return runRanks(group, [&](ThreadTransport& transport) {
      const auto rank = size_t(transport.rank());
      Bucket bucket;
      bucket.gradient = gradients[rank].data();
      bucket.numel = gradients[rank].size();
      bucket.slots = slots;
      bucket.signature = signatureOf(slots);
      bucket.step = step;
      bucket.index = index;
      compressors_[rank]->run(bucket, transport, reports[rank]);
    });
  }

  void run(
      Gradients& gradients,
      const std::vector<Slot>& slots,
      uint64_t step,
      uint32_t index = 0) {
    for (const auto& error : tryRun(gradients, slots, step, index)) {
      CHECK_EQ(messageOf(error), "");
    }
    for (const auto& g : gradients) {
      CHECK(sameBits(g, gradients[0]));
    }
  }

  Compressor& operator[](int rank) {
    return *compressors_[size_t(rank)];
  }
  void replace(int rank, const Options& options) {
    compressors_[size_t(rank)] = Compressor::make(options);
  }
  ThreadGroup& group() {
    return group_;
  }

  std::vector<BucketReport> reports;

 private:
  ThreadGroup group_;
  std::vector<std::unique_ptr<Compressor>> compressors_;
};

inline Options optionsOf(
    const std::string& scheme,
    std::map<std::string, double> values = {}) {
  Options options;
  options.scheme = scheme;
  options.values = std::move(values);
  options.seed = 7;
  return options;
}

} // namespace commprof::compress
